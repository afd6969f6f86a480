//! The client before routes: one with a single server, and one that makes several servers
//! one. `../servers/README.md` ("Servers for routes") says what these offer.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use futures::future::join_all;
use rmcp::model::{CallToolRequest, ClientRequest, GetPromptRequestParams, ProtocolVersion};
use rmcp::service::PeerRequestOptions;
use serde_json::{Value, json};

use crate::listen::Listener;
use crate::notified::{ended, stream_open, subscribe, told, unsubscribe};
use crate::steps::{FRAGILE, Fault, events, required, status_inside, step, until};
use crate::{Connection, fault, must, params, text};

const ROOT: &str = "file:///home/ada/notes";
const LISTS: [&str; 4] = ["tools", "resources", "resourceTemplates", "prompts"];

type Outcome<T = ()> = Result<(String, T), Fault>;

/// The upstreams of the route that joins several, in the order of the configuration.
static SERVERS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let servers = required("INTEROP_SERVERS");
    servers.split(' ').map(str::to_owned).collect()
});

fn servers() -> impl DoubleEndedIterator<Item = &'static str> + Clone {
    SERVERS.iter().map(String::as_str)
}

/// The one of them that speaks HTTP, so that it may ask the client.
fn asking() -> &'static str {
    servers().next_back().unwrap_or_default()
}

fn is_direct() -> bool {
    required("INTEROP_DIRECT") == "True"
}

/// The public form of a server's own name or URI.
fn known(server: &str, own: &str) -> String {
    match is_direct() {
        true => own.to_owned(),
        false => format!("{server}-{own}"),
    }
}

fn note(server: &str) -> String {
    known(server, "memo://shelf/note")
}

/// The server whose name begins this one.
fn owner_of(name: &str) -> Result<&'static str, Fault> {
    let owner = servers().find(|server| name.starts_with(&known(server, "")));
    owner.ok_or_else(|| format!("{name} is of no server"))
}

fn offers(list: &str) -> &'static [&'static str] {
    match list {
        "tools" => &[
            "echo",
            "stream_processor",
            "wait",
            "cite",
            "touch",
            "ask_model",
            "ask_user",
            "ask_roots",
        ],
        "resources" => &[
            // What has a URI has a name too.
            "memo://shelf/note note",
            "memo://shelf/list list",
            "memo://shelf/poem poem",
        ],
        "resourceTemplates" => &["memo://drawer/{name} drawer", "memo://box/{number} box"],
        _ => &["greet", "brief", "cheer"],
    }
}

pub async fn drive(mode: &str) {
    let client = &format!("rmcp {mode}");
    step(client, "one", one(mode)).await;
    let Some(main) = step(client, "connect", connect(mode)).await else {
        std::process::exit(1);
    };
    step(client, "list", list(&main)).await;
    step(client, "call", call(&main)).await;
    step(client, "progress", progress(&main)).await;
    step(client, "read", read(&main)).await;
    step(client, "embedded", embedded(&main)).await;
    step(client, "subscribe", subscribed(&main)).await;
    step(client, "complete", complete(&main)).await;
    step(client, "cancel", cancel(&main)).await;
    step(client, "question", question(&main)).await;
    step(client, "close", close(main, mode)).await;
    // Whatever the connection that is left would still say, it must not.
    std::process::exit(0);
}

async fn open(mode: &str, url: &str) -> Result<Connection, Fault> {
    Connection::open_at(mode, Listener::with_roots(&[ROOT]), required(url)).await
}

async fn said(connection: &Connection, tool: String, given: Value) -> Result<String, Fault> {
    let result = connection.call(tool, given).await.map_err(fault)?;
    Ok(text(&result).to_owned())
}

/// Calls a tool that tells its progress: each message comes once, in order, before the result.
async fn steps(connection: &Connection, tool: &str, count: u32) -> Result<(), Fault> {
    let call = params(tool.to_owned(), json!({ "count": count }));
    told(connection, call, count).await.map(|_| ())
}

/// A list to its end, as plain values.
async fn all(connection: &Connection, list: &str) -> Result<Vec<Value>, Fault> {
    let service = &connection.service;
    let entries = match list {
        "tools" => service.list_all_tools().await.map(|all| json!(all)),
        "resources" => service.list_all_resources().await.map(|all| json!(all)),
        "resourceTemplates" => {
            let all = service.list_all_resource_templates().await;
            all.map(|all| json!(all))
        }
        _ => service.list_all_prompts().await.map(|all| json!(all)),
    };
    match entries.map_err(fault)? {
        Value::Array(entries) => Ok(entries),
        other => Err(format!("no list: {other}")),
    }
}

/// What names the entries of a list, each by its URI first if it has one.
fn names(entries: &[Value]) -> Vec<String> {
    let name = |entry: &Value| {
        let parts = ["uri", "uriTemplate", "name"].map(|part| entry[part].as_str());
        parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
    };
    entries.iter().map(name).collect()
}

async fn one(mode: &str) -> Outcome {
    let connection = open(mode, "INTEROP_URL_ONE").await?;
    let server = match is_direct() {
        true => asking(),
        false => "gateway-one",
    };
    let tool = known(server, "stream_processor");
    let entries = all(&connection, "tools").await?;
    let listed = names(&entries);
    must!(listed.contains(&tool), "{tool} among {listed:?}");
    steps(&connection, &tool, 5).await?;
    steps(&connection, &tool, 100).await?;
    ended(connection.service.cancel()).await?;
    let detail = format!("{tool}: listed; 5 and 100 messages in order, then the result");
    Ok((detail, ()))
}

async fn connect(mode: &str) -> Outcome<Connection> {
    let connection = open(mode, "INTEROP_URL").await?;
    let info = connection.service.peer_info().ok_or("no server info")?;
    let name = info.server_info.as_ref().map(|server| server.name.clone());
    let expected = match is_direct() {
        true => format!("shelf-{}-{}", required("INTEROP_ASKING"), asking()),
        false => "all".to_owned(),
    };
    must!(name.as_ref() == Some(&expected), "server {name:?}");
    let version = &info.protocol_version;
    must!(*version == ProtocolVersion::V_2025_11_25, "{version}");
    let probes = connection.recorder.of("server/discover");
    must!(probes.is_empty() == (mode == "legacy"), "{probes:?}");
    let all = connection.capabilities()?;
    let subscribe = all.resources.as_ref().and_then(|of| of.subscribe);
    must!(
        all.tools.is_some() && all.prompts.is_some() && all.completions.is_some(),
        "{all:?}"
    );
    must!(subscribe == Some(true), "{all:?}");
    until(|| servers().all(|server| events(&format!("{server} initialized")) > 0)).await;
    let detail = format!("2025-11-25; {}: initialized", SERVERS.join(", "));
    Ok((detail, connection))
}

/// All that the servers offer is listed, of each server in its own order, and no more.
async fn list(connection: &Connection) -> Outcome {
    let mut counts = Vec::new();
    for list in LISTS {
        let entries = all(connection, list).await?;
        let listed = names(&entries);
        for server in servers() {
            let public = |own: &&str| {
                let parts = own.split(' ').map(|part| known(server, part));
                parts.collect::<Vec<_>>().join(" ")
            };
            let expected: Vec<String> = offers(list).iter().map(public).collect();
            let own = listed.iter().filter(|name| expected.contains(name));
            let own: Vec<String> = own.cloned().collect();
            must!(own == expected, "{list} of {server}: {listed:?}");
        }
        let count = SERVERS.len() * offers(list).len();
        must!(listed.len() == count, "{list}: {listed:?}");
        counts.push(format!("{count} {list}"));
    }
    let pages = connection.recorder.of("tools/list").len();
    must!(pages > 1, "{pages} page");
    let detail = format!("{}; the tools in {pages} pages", counts.join(", "));
    Ok((detail, ()))
}

async fn call(connection: &Connection) -> Outcome {
    let echo = async |server: &str, message: String| {
        let text = said(
            connection,
            known(server, "echo"),
            json!({ "message": message }),
        );
        let text = text.await?;
        must!(text == format!("{server}: {message}"), "{text}");
        Ok::<(), Fault>(())
    };
    for server in servers() {
        echo(server, FRAGILE.to_owned()).await?;
    }
    let calls = servers().cycle().take(60).enumerate();
    let calls = calls.map(|(n, server)| echo(server, format!("{n} {}", "x".repeat(n * 17))));
    for outcome in join_all(calls).await {
        outcome?;
    }
    let detail = "one of each, then 60 at once: each answer of its own server";
    Ok((detail.into(), ()))
}

async fn progress(connection: &Connection) -> Outcome {
    for server in servers() {
        steps(connection, &known(server, "stream_processor"), 20).await?;
    }
    let detail = "20 messages of each, in order and before the result";
    Ok((detail.into(), ()))
}

/// Reads a resource: its one content has the very URI and text.
async fn reads(connection: &Connection, uri: &str, text: &str) -> Result<(), Fault> {
    let params = rmcp::model::ReadResourceRequestParams::new(uri);
    let result = connection.service.read_resource(params).await;
    let contents = serde_json::to_value(result.map_err(fault)?.contents).unwrap_or_default();
    let count = contents.as_array().map_or(0, Vec::len);
    let holds = count == 1 && contents[0]["uri"] == uri && contents[0]["text"] == text;
    must!(holds, "{uri}: {contents}");
    Ok(())
}

async fn read(connection: &Connection) -> Outcome {
    for resource in all(connection, "resources").await? {
        let uri = resource["uri"].as_str().unwrap_or_default();
        let server = owner_of(resource["name"].as_str().unwrap_or_default())?;
        let name = uri.rsplit('/').next().unwrap_or_default();
        reads(connection, uri, &format!("{name} on the shelf of {server}")).await?;
    }
    for template in all(connection, "resourceTemplates").await? {
        let template = template["uriTemplate"].as_str().unwrap_or_default();
        let server = owner_of(template)?;
        let (before, _) = template.split_once('{').ok_or("no variable")?;
        let place = before.rsplit('/').nth(1).unwrap_or_default();
        let text = format!("7 on the {place} of {server}");
        reads(connection, &format!("{before}7"), &text).await?;
    }
    let detail = "each by its URI from the list, and one of each template";
    Ok((detail.into(), ()))
}

async fn embedded(connection: &Connection) -> Outcome {
    for server in servers() {
        let (note, text) = (note(server), format!("note on the shelf of {server}"));
        let request = GetPromptRequestParams::new(known(server, "brief"));
        let prompt = connection.service.get_prompt(request).await;
        let prompt = serde_json::to_value(prompt.map_err(fault)?).unwrap_or_default();
        let resource = &prompt["messages"][0]["content"]["resource"];
        must!(
            resource["uri"] == note && resource["text"] == text,
            "{prompt}"
        );
        reads(connection, &note, &text).await?;
        let cited = connection.call(known(server, "cite"), json!({})).await;
        let cited = serde_json::to_value(cited.map_err(fault)?).unwrap_or_default();
        let [link, held] = [&cited["content"][0], &cited["content"][1]];
        must!(
            link["type"] == "resource_link" && link["uri"] == note,
            "{link}"
        );
        must!(held["resource"]["uri"] == note, "{held}");
    }
    let detail = "read by the URI in a prompt, and by that of a link in a result";
    Ok((detail.into(), ()))
}

async fn subscribed(connection: &Connection) -> Outcome {
    stream_open(connection).await?;
    let listener = &connection.listener;
    let touch = async |server: &str| said(connection, known(server, "touch"), json!({})).await;
    for server in servers() {
        let note = note(server);
        listener.take_updated();
        let untold = touch(server).await?;
        must!(untold == "nobody has subscribed", "{untold}");
        subscribe(connection, &note).await?;
        let touched = touch(server).await?;
        must!(touched == "touched", "{touched}");
        until(|| listener.updates(&note) > 0).await;
        unsubscribe(connection, &note).await?;
        while touch(server).await? != "nobody has subscribed" {
            tokio::task::yield_now().await;
        }
        let told: BTreeSet<String> = listener.take_updated().into_iter().collect();
        must!(told == BTreeSet::from([note]), "told of {told:?}");
    }
    let detail = "told under the public URI of each, nobody told before and after";
    Ok((detail.into(), ()))
}

async fn complete(connection: &Connection) -> Outcome {
    let service = &connection.service;
    let of = |server, values: [&str; 2]| values.map(|value| format!("{value} of {server}"));
    for server in servers() {
        let (prompt, template) = (
            known(server, "greet"),
            known(server, "memo://drawer/{name}"),
        );
        let values = service.complete_prompt_simple(prompt, "name", "a").await;
        let values = values.map_err(fault)?;
        must!(values == of(server, ["ada", "alan"]), "{values:?}");
        let values = service
            .complete_resource_simple(template, "name", "a")
            .await;
        let values = values.map_err(fault)?;
        must!(values == of(server, ["apples", "arrows"]), "{values:?}");
    }
    let detail = "an argument of a prompt and a variable of a template of each";
    Ok((detail.into(), ()))
}

async fn cancel(connection: &Connection) -> Outcome {
    let wait = |server: &str, what: &str| events(&format!("{server} wait {what}"));
    for server in servers() {
        let request = CallToolRequest::new(params(known(server, "wait"), json!({})));
        let request = ClientRequest::CallToolRequest(request);
        let options = PeerRequestOptions::no_options();
        let call = connection
            .service
            .send_cancellable_request(request, options);
        let call = call.await.map_err(fault)?;
        until(|| wait(server, "began") == 1).await;
        let reason = Some("not wanted any more".to_owned());
        call.cancel(reason).await.map_err(fault)?;
        until(|| wait(server, "cancelled") == 1).await;
    }
    for server in servers() {
        let cancelled = wait(server, "cancelled");
        must!(cancelled == 1, "{server}: {cancelled} calls cancelled");
    }
    Ok(("each server has stopped".into(), ()))
}

async fn question(connection: &Connection) -> Outcome {
    stream_open(connection).await?;
    connection.listener.take_asked();
    let questions = [
        (
            "ask_model",
            json!({ "question": "why" }),
            format!("The model said: why? {FRAGILE}"),
        ),
        (
            "ask_user",
            json!({ "question": "here" }),
            "The user said: accept Ada of here".to_owned(),
        ),
        ("ask_roots", json!({}), format!("The roots are: {ROOT}")),
    ];
    for (tool, given, expected) in questions {
        let answer = said(connection, known(asking(), tool), given).await?;
        must!(answer == expected, "{answer}");
    }
    let asked = connection.listener.take_asked();
    must!(asked == ["why", "here", "roots"], "{asked:?}");
    let detail = "sampling, elicitation and roots: asked once each, the answers have come";
    Ok((detail.into(), ()))
}

async fn close(connection: Connection, mode: &str) -> Outcome {
    let session = connection.session();
    let before = events("deleted");
    ended(connection.service.cancel()).await?;
    until(|| events("deleted") == before + 1).await;
    let status = status_inside(&session).await?;
    must!(status == 404, "status {status}");
    // For the gateway to end when it stops, as the runner sees.
    let initialized = || events(&format!("{} initialized", asking()));
    let begun = initialized();
    std::mem::forget(open(mode, "INTEROP_URL").await?);
    until(|| initialized() > begun).await;
    let detail = "the server over HTTP has seen the DELETE, then 404";
    Ok((detail.into(), ()))
}
