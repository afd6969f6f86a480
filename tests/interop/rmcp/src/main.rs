//! The official Rust client: `ringway-interop-rmcp legacy|auto`, `... http` before a server
//! that speaks HTTP, `... routes legacy|auto` before routes. One process drives one gateway,
//! whose address and servers come in the environment (see `steps` and `routes`), and prints
//! one JSON line for each step.

mod behind_http;
mod listen;
mod notified;
mod record;
mod routes;
mod steps;

use std::borrow::Cow;
use std::time::Duration;

use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, ClientRequest, CustomRequest,
    ErrorData, JsonObject, ProtocolVersion, ServerCapabilities,
};
use rmcp::service::{PeerRequestOptions, RunningService, ServiceError};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientLifecycleMode, ClientServiceExt, RoleClient};
use serde_json::{Value, json};

use crate::listen::Listener;
use crate::record::Recorder;
use crate::steps::{
    FRAGILE, Fault, end_session_elsewhere, kill_server, required, status_inside, step, until,
};

struct Connection {
    service: RunningService<RoleClient, Listener>,
    listener: Listener,
    recorder: Recorder,
}

impl Connection {
    async fn open(mode: &str) -> Result<Self, Fault> {
        let listener = match mode {
            "http" => Listener::answering(),
            _ => Listener::default(),
        };
        Self::open_at(mode, listener, required("INTEROP_URL")).await
    }

    async fn open_at(mode: &str, listener: Listener, url: String) -> Result<Self, Fault> {
        let recorder = Recorder::new();
        let config = StreamableHttpClientTransportConfig::with_uri(url);
        let transport = StreamableHttpClientTransport::with_client(recorder.clone(), config);
        let lifecycle = match mode {
            "legacy" | "http" => ClientLifecycleMode::Initialize,
            "auto" => ClientLifecycleMode::Auto {
                preferred_versions: vec![ProtocolVersion::V_2026_07_28],
                legacy_version: None,
            },
            other => return Err(format!("no mode {other}")),
        };
        let service = listener
            .clone()
            .serve_with_lifecycle(transport, lifecycle)
            .await
            .map_err(|error| error.to_string())?;
        Ok(Self {
            service,
            listener,
            recorder,
        })
    }

    fn capabilities(&self) -> Result<ServerCapabilities, Fault> {
        let info = self.service.peer_info().ok_or("no server info")?;
        Ok(info.capabilities.clone())
    }

    async fn call(
        &self,
        name: impl Into<Cow<'static, str>>,
        arguments: Value,
    ) -> Result<CallToolResult, ServiceError> {
        self.service.call_tool(params(name, arguments)).await
    }

    /// Calls `echo` and checks that the very text comes back.
    async fn echo(&self, message: &str) -> Result<(), ServiceError> {
        let result = self.call("echo", json!({ "message": message })).await?;
        if text(&result) == message {
            Ok(())
        } else {
            Err(ServiceError::UnexpectedResponse)
        }
    }

    fn session(&self) -> String {
        self.recorder.session().unwrap_or_default()
    }
}

fn params(name: impl Into<Cow<'static, str>>, arguments: Value) -> CallToolRequestParams {
    let arguments: JsonObject = serde_json::from_value(arguments).expect("arguments are an object");
    CallToolRequestParams::new(name).with_arguments(arguments)
}

fn text(result: &CallToolResult) -> &str {
    let first = result.content.first().and_then(|content| content.as_text());
    first.map_or("", |content| content.text.as_str())
}

fn slow() -> CallToolRequestParams {
    params("slow", json!({ "steps": 1000, "interval_ms": 1000 }))
}

fn fault(error: ServiceError) -> Fault {
    error.to_string()
}

fn json_rpc_error(error: &ServiceError) -> Option<&ErrorData> {
    match error {
        ServiceError::McpError(error) => Some(error),
        _ => None,
    }
}

fn is_upstream_down(error: &ServiceError) -> bool {
    json_rpc_error(error).is_some_and(|error| {
        let reason = error.data.as_ref().map(|data| &data["reason"]);
        error.code.0 == -32603 && reason == Some(&json!("upstream_down"))
    })
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mode = std::env::args().nth(1).unwrap_or_default();
    if mode == "http" {
        return behind_http::drive("rmcp").await;
    }
    if mode == "routes" {
        let mode = std::env::args().nth(2).unwrap_or_default();
        return routes::drive(&mode).await;
    }
    let client = format!("rmcp {mode}");
    let Some(connection) = step(&client, "connect", connect(&mode)).await else {
        std::process::exit(1);
    };
    let session = connection.session();
    step(&client, "list", list(&connection)).await;
    step(&client, "call", call(&connection)).await;
    step(&client, "parallel", parallel(&connection)).await;
    step(&client, "tool-error", tool_error(&connection)).await;
    step(&client, "unknown-method", unknown_method(&connection)).await;
    step(
        &client,
        "progress",
        notified::progress_in_order(&connection),
    )
    .await;
    step(&client, "subscribe", notified::subscribed(&connection)).await;
    step(&client, "list-changed", notified::list_changed(&connection)).await;
    step(&client, "two-clients", notified::two_clients(&mode)).await;
    step(
        &client,
        "unknown-session",
        unknown_session(&connection, &mode),
    )
    .await;
    step(&client, "cancel", cancel(&connection)).await;
    step(&client, "server-killed", server_killed(&connection)).await;
    step(&client, "reconnect", reconnect(&connection, &session)).await;
    step(&client, "close", close(connection, &session)).await;
}

async fn connect(mode: &str) -> Result<(String, Connection), Fault> {
    let connection = Connection::open(mode).await?;
    let info = connection.service.peer_info().ok_or("no server info")?;
    let name = info.server_info.as_ref().map(|server| server.name.as_str());
    must!(name == Some("ringway-demo"), "server {name:?}");
    let version = info.protocol_version.to_string();
    must!(version == "2025-11-25", "protocol version {version}");
    // Otherwise this run would show nothing about the automatic mode, or about the other.
    let probes = connection.recorder.of("server/discover");
    must!(
        probes.is_empty() == (mode == "legacy"),
        "probes in mode {mode}: {probes:?}"
    );
    until(|| connection.recorder.session().is_some()).await;
    let probed = match probes.first().and_then(|probe| probe.ended.as_ref()) {
        None => String::new(),
        Some(Ok(())) => ", after a probe answered with a JSON-RPC message".to_owned(),
        Some(Err(error)) => format!(", after a probe that ended with: {error}"),
    };
    Ok((format!("{version}{probed}"), connection))
}

async fn list(connection: &Connection) -> Result<(String, ()), Fault> {
    let tools = connection.service.list_all_tools().await.map_err(fault)?;
    for name in ["echo", "add", "slow", "big", "touch", "grow"] {
        must!(tools.iter().any(|tool| tool.name == name), "no tool {name}");
    }
    let resources = connection
        .service
        .list_all_resources()
        .await
        .map_err(fault)?;
    for uri in ["demo://clock", "demo://notes"] {
        must!(
            resources.iter().any(|resource| resource.uri == uri),
            "no resource {uri}"
        );
    }
    let prompts = connection.service.list_all_prompts().await.map_err(fault)?;
    must!(
        prompts.len() == 1 && prompts[0].name == "greet",
        "prompts {prompts:?}"
    );
    let counts = (tools.len(), resources.len(), prompts.len());
    Ok((
        format!(
            "{} tools, {} resources, {} prompt",
            counts.0, counts.1, counts.2
        ),
        (),
    ))
}

async fn call(connection: &Connection) -> Result<(String, ()), Fault> {
    connection.echo(FRAGILE).await.map_err(fault)?;
    let arguments = json!({ "a": 9_007_199_254_740_993_u64, "b": 1 });
    let sum = connection.call("add", arguments).await.map_err(fault)?;
    must!(text(&sum) == "9007199254740994", "sum {}", text(&sum));
    Ok(("echo of a fragile text, a sum past 2^53".into(), ()))
}

async fn parallel(connection: &Connection) -> Result<(String, ()), Fault> {
    let session = connection.session();
    let calls = (0..100).map(|n| {
        // Different lengths, so that an answer cut or joined elsewhere shows.
        let message = format!("{session} {n} {}", "x".repeat(n * 17));
        async move { connection.echo(&message).await }
    });
    for outcome in futures::future::join_all(calls).await {
        outcome.map_err(fault)?;
    }
    Ok(("100 answers, each its own".into(), ()))
}

async fn tool_error(connection: &Connection) -> Result<(String, ()), Fault> {
    let result = connection
        .call("add", json!({ "a": "one" }))
        .await
        .map_err(fault)?;
    must!(result.is_error == Some(true), "no error: {result:?}");
    Ok((text(&result).to_owned(), ()))
}

async fn unknown_method(connection: &Connection) -> Result<(String, ()), Fault> {
    let request = CustomRequest::new("ringway/no-such-method", Some(json!({})));
    let outcome = connection
        .service
        .send_request(ClientRequest::CustomRequest(request))
        .await;
    let error = outcome.err().ok_or("no error")?;
    let code = json_rpc_error(&error).map(|error| error.code.0);
    must!(code == Some(-32601), "{error}");
    connection.echo("still here").await.map_err(fault)?;
    Ok((error.to_string(), ()))
}

async fn unknown_session(connection: &Connection, mode: &str) -> Result<(String, ()), Fault> {
    let other = Connection::open(mode).await?;
    // The session's id is known once the client has used it.
    other.echo("here").await.map_err(fault)?;
    let gone = other.session();
    end_session_elsewhere(&gone).await?;
    // Alone among the clients, this one starts a session anew and repeats the call.
    other.echo("into a new session").await.map_err(fault)?;
    must!(other.session() != gone, "the session is the same");
    let refused = other.recorder.of("tools/call");
    let refused = refused
        .iter()
        .find_map(|exchange| exchange.ended.clone()?.err());
    let refused = refused.ok_or("no call was refused")?;
    other
        .service
        .cancel()
        .await
        .map_err(|error| error.to_string())?;
    connection.echo("unharmed").await.map_err(fault)?;
    Ok((
        format!("a new session, the call succeeds there (first: {refused})"),
        (),
    ))
}

async fn cancel(connection: &Connection) -> Result<(String, ()), Fault> {
    let request = ClientRequest::CallToolRequest(CallToolRequest::new(slow()));
    let before = connection.recorder.of("tools/call").len();
    let options = PeerRequestOptions::no_options();
    let handle = connection
        .service
        .send_cancellable_request(request, options)
        .await;
    let handle = handle.map_err(fault)?;
    until(|| connection.recorder.of("tools/call").len() > before).await;
    connection.echo("meanwhile").await.map_err(fault)?;
    handle
        .cancel(Some("not wanted any more".into()))
        .await
        .map_err(fault)?;
    until(|| {
        let told = connection.recorder.of("notifications/cancelled");
        told.iter().any(|exchange| exchange.ended == Some(Ok(())))
    })
    .await;
    let exchange = || connection.recorder.of("tools/call").swap_remove(before);
    until(|| exchange().ended.is_some()).await;
    connection.echo("afterwards").await.map_err(fault)?;
    let how = exchange().ended.and_then(Result::err);
    Ok((
        format!(
            "the call's exchange ends: {}",
            how.as_deref().unwrap_or("no message")
        ),
        (),
    ))
}

async fn server_killed(connection: &Connection) -> Result<(String, ()), Fault> {
    let before = connection.recorder.of("tools/call").len();
    let lost = connection.service.call_tool(slow());
    let kill = async {
        until(|| connection.recorder.of("tools/call").len() > before).await;
        connection.echo("before").await.map_err(fault)?;
        kill_server()
    };
    let (lost, killed) = futures::future::join(lost, kill).await;
    killed?;
    let error = lost.err().ok_or("no error")?;
    must!(is_upstream_down(&error), "{error}");
    Ok((format!("the call in flight ends: {error}"), ()))
}

async fn reconnect(connection: &Connection, session: &str) -> Result<(String, ()), Fault> {
    let mut failed = 0;
    while let Err(error) = connection.echo("again").await {
        // Anything else, a lost session say, is not what a dead server may lead to.
        must!(is_upstream_down(&error), "{error}");
        failed += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let now = connection.session();
    must!(now == session, "another session: {now}, not {session}");
    let handshakes = connection.recorder.of("initialize").len();
    must!(handshakes == 1, "{handshakes} handshakes");
    Ok((
        format!("same session, after {failed} calls that failed"),
        (),
    ))
}

async fn close(connection: Connection, session: &str) -> Result<(String, ()), Fault> {
    let Connection {
        service, recorder, ..
    } = connection;
    service.cancel().await.map_err(|error| error.to_string())?;
    until(|| {
        recorder
            .of("DELETE")
            .iter()
            .any(|exchange| exchange.ended.is_some())
    })
    .await;
    let deletes = recorder.of("DELETE");
    must!(
        deletes.len() == 1 && deletes[0].ended == Some(Ok(())),
        "{deletes:?}"
    );
    let status = status_inside(session).await?;
    must!(status == 404, "status {status}");
    Ok(("DELETE accepted, then 404".into(), ()))
}
