//! The steps about what the server says unasked: progress, updates of resources,
//! changes of lists, and who hears them.

use std::future::Future;

use futures::future::join;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, ClientRequest, ProgressToken,
    ReadResourceRequestParams, ResourceContents, ServerResult, SubscribeRequestParams,
    UnsubscribeRequestParams,
};
use rmcp::service::PeerRequestOptions;
use serde_json::json;

use crate::listen::Step;
use crate::steps::{Fault, progress_is_sent, until};
use crate::{Connection, fault, must, params, text};

const CLOCK: &str = "demo://clock";
const NOTES: &str = "demo://notes";
const LISTS: [&str; 3] = ["tools", "resources", "prompts"];

/// All progress of one call of the tool `slow`, in order.
fn progress_of(steps: u32) -> Vec<Step> {
    if !progress_is_sent() {
        return Vec::new();
    }
    let step = |n| {
        let text = format!("step {n} of {steps}");
        (f64::from(n), Some(f64::from(steps)), Some(text))
    };
    (1..=steps).map(step).collect()
}

async fn progress(connection: &Connection, steps: u32, interval_ms: u32) -> Result<(), Fault> {
    let arguments = json!({ "steps": steps, "interval_ms": interval_ms });
    told(connection, params("slow", arguments), steps).await?;
    Ok(())
}

/// Makes a call of so many steps and checks that all its progress comes, with the token
/// of the call, in order and before its result. Returns the token.
pub async fn told(
    connection: &Connection,
    call: CallToolRequestParams,
    steps: u32,
) -> Result<ProgressToken, Fault> {
    let request = ClientRequest::CallToolRequest(CallToolRequest::new(call));
    let handle = connection
        .service
        .send_cancellable_request(request, PeerRequestOptions::no_options())
        .await
        .map_err(fault)?;
    let token = handle.progress_token.clone();
    let result = handle.await_response().await.map_err(fault)?;
    // rmcp gives each notification to a task of its own, which may get its turn after the
    // caller: what came before the result is seen on the call's stream.
    let call = connection.recorder.of("tools/call").pop();
    let mut events = call.map(|call| call.events).unwrap_or_default();
    // An event that only primes the stream has no message.
    events.retain(|event| !event.is_empty());
    let is_result = |event: &String| event.contains("\"result\"");
    let before = events.iter().take_while(|event| !is_result(event)).count();
    let expected = progress_of(steps);
    must!(
        before == expected.len(),
        "{before} messages before the result of {steps} steps"
    );
    until(|| connection.listener.progress(&token).len() >= expected.len()).await;
    let told = connection.listener.progress(&token);
    let ServerResult::CallToolResult(result) = result else {
        return Err(format!("no result of a tool: {result:?}"));
    };
    let said = text(&result);
    must!(said == format!("done after {steps} steps"), "{said}");
    must!(told == expected, "of {steps} steps: {told:?}");
    Ok(token)
}

/// Changes a resource. True: the server had somebody to tell.
async fn touch(connection: &Connection, uri: &str) -> Result<bool, Fault> {
    let result = connection
        .call("touch", json!({ "uri": uri }))
        .await
        .map_err(fault)?;
    match text(&result).strip_prefix(&format!("touched {uri}: ")) {
        Some("its subscribers were told") => Ok(true),
        Some("nobody has subscribed to it") => Ok(false),
        _ => Err(format!("touch: {}", text(&result))),
    }
}

/// Waits until the server has nobody to tell of this resource.
async fn until_nobody_is_told(connection: &Connection, uri: &str) -> Result<(), Fault> {
    while touch(connection, uri).await? {
        tokio::task::yield_now().await;
    }
    Ok(())
}

async fn grow(connection: &Connection, list: &str) -> Result<(), Fault> {
    let grown = connection.call("grow", json!({ "list": list })).await;
    grown.map(|_| ()).map_err(fault)
}

// Both are of the era that ends with 2025-11-25, which is the one spoken here.
#[expect(deprecated)]
pub async fn subscribe(connection: &Connection, uri: &str) -> Result<(), Fault> {
    let params = SubscribeRequestParams::new(uri);
    connection.service.subscribe(params).await.map_err(fault)
}

#[expect(deprecated)]
pub async fn unsubscribe(connection: &Connection, uri: &str) -> Result<(), Fault> {
    let params = UnsubscribeRequestParams::new(uri);
    connection.service.unsubscribe(params).await.map_err(fault)
}

pub async fn read(connection: &Connection, uri: &str) -> Result<String, Fault> {
    let params = ReadResourceRequestParams::new(uri);
    let result = connection.service.read_resource(params).await;
    match result.map_err(fault)?.contents.first() {
        Some(ResourceContents::TextResourceContents { text, .. }) => Ok(text.clone()),
        other => Err(format!("no text: {other:?}")),
    }
}

/// Waits until the client's stream for messages of the server is open.
pub async fn stream_open(connection: &Connection) -> Result<(), Fault> {
    let first = || connection.recorder.of("GET").into_iter().next();
    until(|| first().is_some_and(|exchange| exchange.ended.is_some())).await;
    let ended = first().and_then(|exchange| exchange.ended);
    must!(ended == Some(Ok(())), "GET: {ended:?}");
    Ok(())
}

/// A barrier: what was to come to this client before has come when this returns. Two
/// updates, for what waits at one time may come in any order.
async fn settle(connection: &Connection) -> Result<(), Fault> {
    let updates = || connection.listener.updates(NOTES);
    let before = updates();
    subscribe(connection, NOTES).await?;
    for count in [1, 2] {
        must!(touch(connection, NOTES).await?, "nobody to tell");
        until(|| updates() >= before + count).await;
    }
    unsubscribe(connection, NOTES).await?;
    let told = updates() - before;
    must!(told == 2, "{told} updates for 2 changes");
    Ok(())
}

pub async fn progress_in_order(connection: &Connection) -> Result<(String, ()), Fault> {
    // Step by step, then all at once.
    progress(connection, 20, 5).await?;
    progress(connection, 200, 0).await?;
    let steps = progress_of(220).len();
    Ok((
        format!("{steps} steps, in order and before the results"),
        (),
    ))
}

pub async fn subscribed(connection: &Connection) -> Result<(String, ()), Fault> {
    stream_open(connection).await?;
    let updates = || connection.listener.updates(CLOCK);
    let resources = connection.capabilities()?.resources;
    let declared = resources.and_then(|resources| resources.subscribe);
    must!(declared == Some(true), "capability subscribe: {declared:?}");
    subscribe(connection, CLOCK).await?;
    must!(touch(connection, CLOCK).await?, "nobody to tell");
    until(|| updates() > 0).await;
    let now = read(connection, CLOCK).await?;
    must!(now == "tick 1", "{now}");
    settle(connection).await?;
    must!(updates() == 1, "{} updates for 1 change", updates());
    unsubscribe(connection, CLOCK).await?;
    touch(connection, CLOCK).await?;
    settle(connection).await?;
    must!(
        updates() == 1,
        "an update after the end of the subscription"
    );
    until_nobody_is_told(connection, CLOCK).await?;
    Ok((
        "1 update for 1 change, none after the end; the server was told of both".into(),
        (),
    ))
}

pub async fn list_changed(connection: &Connection) -> Result<(String, ()), Fault> {
    stream_open(connection).await?;
    for list in LISTS {
        must!(declares_changes(connection, list)?, "{list}: not declared");
        must!(!has_grown(connection, list).await?, "{list}: not as new");
        grow(connection, list).await?;
        until(|| connection.listener.changed().contains(&list)).await;
        must!(has_grown(connection, list).await?, "{list}: as before");
    }
    settle(connection).await?;
    let changed = connection.listener.changed();
    must!(changed == LISTS, "told: {changed:?}");
    Ok((
        format!("{}: once each, and listed anew", LISTS.join(", ")),
        (),
    ))
}

fn declares_changes(connection: &Connection, list: &str) -> Result<bool, Fault> {
    let all = connection.capabilities()?;
    let declared = match list {
        "tools" => all.tools.and_then(|tools| tools.list_changed),
        "resources" => all.resources.and_then(|resources| resources.list_changed),
        _ => all.prompts.and_then(|prompts| prompts.list_changed),
    };
    Ok(declared == Some(true))
}

/// True once the list has the entry that `grow` adds first.
async fn has_grown(connection: &Connection, list: &str) -> Result<bool, Fault> {
    let service = &connection.service;
    Ok(match list {
        "tools" => {
            let tools = service.list_all_tools().await.map_err(fault)?;
            tools.iter().any(|tool| tool.name == "extra-1")
        }
        "resources" => {
            let resources = service.list_all_resources().await.map_err(fault)?;
            resources.iter().any(|resource| resource.name == "extra-1")
        }
        _ => {
            let prompts = service.list_all_prompts().await.map_err(fault)?;
            prompts.iter().any(|prompt| prompt.name == "extra-1")
        }
    })
}

pub async fn two_clients(mode: &str) -> Result<(String, ()), Fault> {
    let one = Connection::open(mode).await?;
    let two = Connection::open(mode).await?;
    both(&one, &two).await?;
    // The end of a session is the end of its subscriptions.
    ended(two.service.cancel()).await?;
    until_nobody_is_told(&one, CLOCK).await?;
    ended(one.service.cancel()).await?;
    Ok((
        "each its own progress and updates, both the change of a list".into(),
        (),
    ))
}

async fn both(one: &Connection, two: &Connection) -> Result<(), Fault> {
    stream_open(one).await?;
    stream_open(two).await?;
    let updates = || (one.listener.updates(CLOCK), two.listener.updates(CLOCK));

    // Both have sent the same so far, so both give the same id and token to this call.
    let (first, second) = join(progress(one, 30, 2), progress(two, 20, 3)).await;
    first?;
    second?;

    let before = two.listener.all_progress();
    subscribe(one, CLOCK).await?;
    must!(touch(one, CLOCK).await?, "nobody to tell");
    until(|| updates().0 > 0).await;
    progress(one, 10, 1).await?;
    settle(one).await?;
    settle(two).await?;
    must!(updates() == (1, 0), "updates of one: {:?}", updates());
    let strange = two.listener.all_progress() - before;
    must!(strange == 0, "{strange} progress messages without a call");

    subscribe(two, CLOCK).await?;
    must!(touch(one, CLOCK).await?, "nobody to tell");
    until(|| updates().0 > 1 && updates().1 > 0).await;
    unsubscribe(one, CLOCK).await?;
    must!(touch(one, CLOCK).await?, "nobody to tell");
    until(|| updates().1 > 1).await;

    let changed = || (one.listener.changed(), two.listener.changed());
    grow(one, "tools").await?;
    until(|| !changed().0.is_empty() && !changed().1.is_empty()).await;
    settle(one).await?;
    settle(two).await?;
    must!(updates() == (2, 2), "updates of both: {:?}", updates());
    let once = vec!["tools"];
    must!(changed() == (once.clone(), once), "told: {:?}", changed());
    Ok(())
}

pub async fn ended<T, E: ToString>(end: impl Future<Output = Result<T, E>>) -> Result<(), Fault> {
    end.await.map(|_| ()).map_err(|error| error.to_string())
}
