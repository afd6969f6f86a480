//! rmcp's own HTTP client with a record of what went through it: the JSON-RPC
//! method, the session, how it ended and what an answer that is a stream said. It adds
//! and changes nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::stream::{BoxStream, StreamExt};
use http::{HeaderName, HeaderValue};
use rmcp::model::ClientJsonRpcMessage;
use rmcp::transport::streamable_http_client::{
    StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
    StreamableHttpResponseLimits,
};
use sse_stream::{Error as SseError, Sse};

/// One HTTP exchange of the client.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// JSON-RPC method of a POST; `DELETE` and `GET` for the others.
    pub method: String,
    pub session: Option<String>,
    /// Absent until the exchange ends; then the error's text, if it ended so.
    pub ended: Option<Result<(), String>>,
    /// The messages of a POST's answer that is a stream, as they came.
    pub events: Vec<String>,
}

#[derive(Clone)]
pub struct Recorder {
    inner: reqwest::Client,
    seen: Arc<Mutex<Vec<Exchange>>>,
}

type HttpError = StreamableHttpError<reqwest::Error>;

impl Recorder {
    pub fn new() -> Self {
        // As rmcp builds its own: no idle connections are kept.
        let inner = reqwest::Client::builder()
            .pool_max_idle_per_host(0)
            .build()
            .expect("a client without options cannot fail");
        Self {
            inner,
            seen: Arc::default(),
        }
    }

    pub fn of(&self, method: &str) -> Vec<Exchange> {
        self.lock()
            .iter()
            .filter(|exchange| exchange.method == method)
            .cloned()
            .collect()
    }

    /// The session that the client uses now.
    pub fn session(&self) -> Option<String> {
        self.lock()
            .iter()
            .rev()
            .find_map(|exchange| exchange.session.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Exchange>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, method: String, session: Option<&Arc<str>>) -> Open<'_> {
        let mut seen = self.lock();
        seen.push(Exchange {
            method,
            session: session.map(|id| id.to_string()),
            ended: None,
            events: Vec::new(),
        });
        Open {
            recorder: self,
            index: seen.len() - 1,
        }
    }

    /// The response with a note of each of its events at the moment at which it is read.
    fn noted(
        &self,
        index: usize,
        response: StreamableHttpPostResponse,
    ) -> StreamableHttpPostResponse {
        let StreamableHttpPostResponse::Sse(stream, session) = response else {
            return response;
        };
        let recorder = self.clone();
        let noted = stream.inspect(move |event| {
            if let Ok(Sse {
                data: Some(data), ..
            }) = event
            {
                recorder.lock()[index].events.push(data.clone());
            }
        });
        StreamableHttpPostResponse::Sse(noted.boxed(), session)
    }
}

/// An exchange that goes on. The client may drop it at any time.
struct Open<'a> {
    recorder: &'a Recorder,
    index: usize,
}

impl Open<'_> {
    fn end<T>(self, outcome: Result<T, HttpError>) -> Result<T, HttpError> {
        let how = outcome.as_ref().map(|_| ()).map_err(ToString::to_string);
        self.recorder.lock()[self.index].ended = Some(how);
        outcome
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let ended = &mut self.recorder.lock()[self.index].ended;
        ended.get_or_insert_with(|| Err("dropped by the client".to_owned()));
    }
}

impl StreamableHttpClient for Recorder {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        let open = self.begin(method_of(&message), session_id.as_ref());
        let index = open.index;
        let outcome = self
            .inner
            .post_message(uri, message, session_id, auth_header, custom_headers)
            .await;
        Ok(self.noted(index, open.end(outcome)?))
    }

    async fn post_message_with_response_limits(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
        limits: StreamableHttpResponseLimits,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        let open = self.begin(method_of(&message), session_id.as_ref());
        let index = open.index;
        let outcome = self
            .inner
            .post_message_with_response_limits(
                uri,
                message,
                session_id,
                auth_header,
                custom_headers,
                limits,
            )
            .await;
        Ok(self.noted(index, open.end(outcome)?))
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), HttpError> {
        let open = self.begin("DELETE".into(), Some(&session_id));
        let outcome = self
            .inner
            .delete_session(uri, session_id, auth_header, custom_headers)
            .await;
        open.end(outcome)
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, HttpError> {
        let open = self.begin("GET".into(), session_id.as_ref());
        let outcome = self
            .inner
            .get_stream(uri, session_id, last_event_id, auth_header, custom_headers)
            .await;
        open.end(outcome)
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
        max_sse_event_size: usize,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, HttpError> {
        let open = self.begin("GET".into(), session_id.as_ref());
        let outcome = self
            .inner
            .get_stream_with_max_sse_event_size(
                uri,
                session_id,
                last_event_id,
                auth_header,
                custom_headers,
                max_sse_event_size,
            )
            .await;
        open.end(outcome)
    }
}

fn method_of(message: &ClientJsonRpcMessage) -> String {
    let value = serde_json::to_value(message).unwrap_or_default();
    value["method"].as_str().unwrap_or("response").to_owned()
}
