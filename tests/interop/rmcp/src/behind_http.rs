//! The client before a server that speaks HTTP, one of `servers/`, whose README says what
//! it offers and what it writes to the file of events.

// Sampling and logging are of the versions with sessions, which are the ones spoken here.
#![expect(deprecated)]

use futures::future::{join, join_all};
use rmcp::RoleClient;
use rmcp::model::{
    CallToolRequest, ClientRequest, GetPromptRequestParams, LoggingLevel, SetLevelRequestParams,
};
use rmcp::service::{PeerRequestOptions, RequestHandle};
use serde_json::{Value, json};

use crate::notified::{ended, read, stream_open, subscribe, told, unsubscribe};
use crate::steps::{FRAGILE, Fault, events, required, signal_server, status_inside, step, until};
use crate::{Connection, fault, must, params, text};

const NOTE: &str = "interop://note";
const TOOLS: [&str; 7] = [
    "echo",
    "steps",
    "wait",
    "log",
    "ask_model",
    "ask_user",
    "touch",
];

type Outcome<T = ()> = Result<(String, T), Fault>;

pub async fn drive(client: &str) {
    let Some(main) = step(client, "connect", connect()).await else {
        std::process::exit(1);
    };
    step(client, "list", list(&main)).await;
    step(client, "call", call(&main)).await;
    step(client, "parallel", parallel(&main)).await;
    step(client, "progress", progress(&main)).await;
    step(client, "two-clients", two_clients()).await;
    step(client, "cancel", cancel(&main)).await;
    step(client, "log", log(&main)).await;
    step(client, "sampling", sampling(&main)).await;
    step(client, "elicitation", elicitation(&main)).await;
    step(client, "questions", questions(&main)).await;
    step(client, "subscribe", subscribed(&main)).await;
    if required("INTEROP_DIRECT") != "True" {
        step(client, "forgotten", forgotten(&main)).await;
    }
    step(client, "close", close(main)).await;
    // Whatever the connection that is left would still say, it must not.
    std::process::exit(0);
}

async fn open() -> Result<Connection, Fault> {
    Connection::open("http").await
}

async fn said(connection: &Connection, tool: &'static str, given: Value) -> Result<String, Fault> {
    let result = connection.call(tool, given).await.map_err(fault)?;
    Ok(text(&result).to_owned())
}

async fn steps(connection: &Connection, count: u32) -> Result<String, Fault> {
    let call = params("steps", json!({ "count": count }));
    let token = told(connection, call, count).await?;
    Ok(format!("{:?}", token.0))
}

/// A barrier: what the server said before on the session's stream has come.
async fn settle(connection: &Connection) -> Result<(), Fault> {
    let before = connection.listener.updates(NOTE);
    subscribe(connection, NOTE).await?;
    let touched = said(connection, "touch", json!({})).await?;
    must!(touched == "touched", "{touched}");
    until(|| connection.listener.updates(NOTE) > before).await;
    unsubscribe(connection, NOTE).await
}

async fn connect() -> Outcome<Connection> {
    let connection = open().await?;
    let info = connection.service.peer_info().ok_or("no server info")?;
    let name = info.server_info.as_ref().map(|server| server.name.clone());
    let expected = format!("interop-{}", required("INTEROP_SERVER"));
    must!(name.as_ref() == Some(&expected), "server {name:?}");
    let version = info.protocol_version.to_string();
    must!(version == "2025-11-25", "protocol version {version}");
    until(|| events("initialized") == 1).await;
    let detail = "2025-11-25; the server has seen initialize and initialized";
    Ok((detail.into(), connection))
}

async fn list(connection: &Connection) -> Outcome {
    let service = &connection.service;
    let tools = service.list_all_tools().await.map_err(fault)?;
    let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_ref()).collect();
    must!(names == TOOLS, "tools {names:?}");
    let resources = service.list_all_resources().await.map_err(fault)?;
    must!(
        resources.len() == 1 && resources[0].uri == NOTE,
        "resources {resources:?}"
    );
    let prompts = service.list_all_prompts().await.map_err(fault)?;
    must!(
        prompts.len() == 1 && prompts[0].name == "greet",
        "prompts {prompts:?}"
    );
    Ok((format!("{} tools, 1 resource, 1 prompt", names.len()), ()))
}

async fn call(connection: &Connection) -> Outcome {
    connection.echo(FRAGILE).await.map_err(fault)?;
    let note = read(connection, NOTE).await?;
    must!(note == "a note", "{note}");
    let arguments = json!({ "name": "Ada" }).as_object().cloned();
    let mut request = GetPromptRequestParams::new("greet");
    request.arguments = arguments;
    let prompt = connection
        .service
        .get_prompt(request)
        .await
        .map_err(fault)?;
    let prompt = serde_json::to_value(prompt).unwrap_or_default();
    let greeting = &prompt["messages"][0]["content"]["text"];
    must!(greeting == "Hello, Ada!", "{greeting}");
    Ok(("a tool, a resource, a prompt".into(), ()))
}

async fn parallel(connection: &Connection) -> Outcome {
    let session = connection.session();
    let calls = (0..100).map(|n| {
        let message = format!("{session} {n} {}", "x".repeat(n * 17));
        async move { connection.echo(&message).await }
    });
    for outcome in join_all(calls).await {
        outcome.map_err(fault)?;
    }
    Ok(("100 answers, each its own".into(), ()))
}

async fn progress(connection: &Connection) -> Outcome {
    steps(connection, 5).await?;
    steps(connection, 100).await?;
    let detail = "5 and 100 steps with the client's token, in order and before the results";
    Ok((detail.into(), ()))
}

async fn two_clients() -> Outcome {
    let (one, two) = (open().await?, open().await?);
    stream_open(&two).await?;
    steps(&one, 5).await?;
    settle(&two).await?;
    let strange = two.listener.all_progress();
    must!(strange == 0, "{strange} progress messages without a call");
    must!(
        one.listener.updates(NOTE) == 0,
        "an update for one who has not subscribed"
    );
    // Once more in step, so that both give the same id and token to this call.
    settle(&one).await?;
    steps(&two, 5).await?;
    let (first, second) = join(steps(&one, 30), steps(&two, 20)).await;
    let (first, second) = (first?, second?);
    must!(first == second, "not the same token: {first} and {second}");
    ended(one.service.cancel()).await?;
    ended(two.service.cancel()).await?;
    Ok(("each its own progress and updates".into(), ()))
}

/// A call of `wait` that has reached the server.
async fn waiting(connection: &Connection) -> Result<RequestHandle<RoleClient>, Fault> {
    let before = events("wait began");
    let request = CallToolRequest::new(params("wait", json!({})));
    let handle = connection
        .service
        .send_cancellable_request(
            ClientRequest::CallToolRequest(request),
            PeerRequestOptions::no_options(),
        )
        .await
        .map_err(fault)?;
    until(|| events("wait began") > before).await;
    Ok(handle)
}

async fn cancel(connection: &Connection) -> Outcome {
    let before = events("wait cancelled");
    let other = open().await?;
    let (mine, theirs) = (waiting(connection).await?, waiting(&other).await?);
    let reason = || Some("not wanted any more".to_owned());
    mine.cancel(reason()).await.map_err(fault)?;
    until(|| events("wait cancelled") == before + 1).await;
    connection.echo("afterwards").await.map_err(fault)?;
    other.echo("unharmed").await.map_err(fault)?;
    let cancelled = events("wait cancelled") - before;
    must!(cancelled == 1, "{cancelled} calls cancelled, not the one");
    theirs.cancel(reason()).await.map_err(fault)?;
    until(|| events("wait cancelled") == before + 2).await;
    ended(other.service.cancel()).await?;
    Ok(("the server has stopped".into(), ()))
}

async fn log(connection: &Connection) -> Outcome {
    stream_open(connection).await?;
    let level = SetLevelRequestParams::new(LoggingLevel::Debug);
    connection.service.set_level(level).await.map_err(fault)?;
    let done = said(connection, "log", json!({ "text": FRAGILE })).await?;
    must!(done == "logged", "{done}");
    let logged = || connection.listener.logged();
    until(|| !logged().is_empty()).await;
    let expected = [(LoggingLevel::Info, json!(FRAGILE))];
    must!(logged() == expected, "{:?}", logged());
    Ok(("1 message".into(), ()))
}

async fn sampling(connection: &Connection) -> Outcome {
    stream_open(connection).await?;
    connection.listener.take_asked();
    let answer = said(connection, "ask_model", json!({ "question": "why" })).await?;
    must!(
        answer == format!("The model said: why? {FRAGILE}"),
        "{answer}"
    );
    let asked = connection.listener.take_asked();
    must!(asked == ["why"], "{asked:?}");
    Ok(("asked once, the answer has come".into(), ()))
}

async fn ask_user(connection: &Connection, question: String) -> Result<(), Fault> {
    let answer = said(connection, "ask_user", json!({ "question": question })).await?;
    let expected = format!("The user said: accept Ada of {question}");
    must!(answer == expected, "{answer}");
    Ok(())
}

async fn elicitation(connection: &Connection) -> Outcome {
    stream_open(connection).await?;
    connection.listener.take_asked();
    ask_user(connection, "here".into()).await?;
    let asked = connection.listener.take_asked();
    must!(asked == ["here"], "{asked:?}");
    Ok(("asked once, the answer has come".into(), ()))
}

async fn questions(connection: &Connection) -> Outcome {
    let other = open().await?;
    stream_open(&other).await?;
    connection.listener.take_asked();
    let clients = [(connection, "main"), (&other, "other")];
    let asks = clients
        .iter()
        .flat_map(|(of, whose)| (0..10).map(move |n| ask_user(of, format!("{whose} {n}"))));
    for outcome in join_all(asks).await {
        outcome?;
    }
    for (of, whose) in clients {
        let mut asked = of.listener.take_asked();
        asked.sort();
        let expected: Vec<String> = (0..10).map(|n| format!("{whose} {n}")).collect();
        must!(asked == expected, "{asked:?}");
    }
    ended(other.service.cancel()).await?;
    Ok((
        "10 at a time for each of two clients, each its own".into(),
        (),
    ))
}

async fn subscribed(connection: &Connection) -> Outcome {
    stream_open(connection).await?;
    let resources = connection.capabilities()?.resources;
    let declared = resources.and_then(|resources| resources.subscribe);
    must!(declared == Some(true), "capability subscribe: {declared:?}");
    let updates = || connection.listener.updates(NOTE);
    let before = updates();
    let untold = said(connection, "touch", json!({})).await?;
    must!(untold == "nobody has subscribed", "{untold}");
    settle(connection).await?;
    let untold = said(connection, "touch", json!({})).await?;
    must!(untold == "nobody has subscribed", "{untold}");
    let told = updates() - before;
    must!(told == 1, "{told} updates for 1 change");
    let detail = "1 update for 1 change, none before and after";
    Ok((detail.into(), ()))
}

async fn forgotten(connection: &Connection) -> Outcome {
    let session = connection.session();
    let before = events("initialized");
    let updates = connection.listener.updates(NOTE);
    subscribe(connection, NOTE).await?;
    signal_server("USR1")?;
    until(|| events("forgotten") == 1).await;
    // All of them find the session gone, and share one new handshake.
    let texts: Vec<String> = (0..10).map(|n| n.to_string()).collect();
    for outcome in join_all(texts.iter().map(|text| connection.echo(text))).await {
        outcome.map_err(fault)?;
    }
    let now = connection.session();
    must!(now == session, "another session: {now}, not {session}");
    let handshakes = events("initialized") - before;
    must!(handshakes == 1, "{handshakes} new handshakes");
    steps(connection, 5).await?;
    let touched = said(connection, "touch", json!({})).await?;
    must!(touched == "touched", "{touched}");
    until(|| connection.listener.updates(NOTE) > updates).await;
    unsubscribe(connection, NOTE).await?;
    ask_user(connection, "again".into()).await?;
    let detail =
        "10 calls at once answered after one new handshake, the subscription is there again";
    Ok((detail.into(), ()))
}

async fn close(connection: Connection) -> Outcome {
    let session = connection.session();
    let before = events("deleted");
    ended(connection.service.cancel()).await?;
    until(|| events("deleted") == before + 1).await;
    let status = status_inside(&session).await?;
    must!(status == 404, "status {status}");
    // For the gateway to end when it stops, as the runner sees.
    let begun = events("initialized");
    std::mem::forget(open().await?);
    until(|| events("initialized") > begun).await;
    Ok(("the server has seen the DELETE, then 404".into(), ()))
}
