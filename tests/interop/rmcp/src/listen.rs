//! The client's own handler of notifications: it notes what the server says, in the
//! order in which rmcp hands it over.

// Sampling and logging are of the versions with sessions, which are the ones spoken here.
#![expect(deprecated)]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rmcp::model::{
    ClientCapabilities, ClientConfig, CreateMessageRequestParams, CreateMessageResult,
    ElicitRequestParams, ElicitResult, ElicitationAction, ErrorData, ListRootsResult, LoggingLevel,
    LoggingMessageNotificationParam, ProgressNotificationParam, ProgressToken,
    ResourceUpdatedNotificationParam, Root, RootsCapabilities, SamplingMessage,
};
use rmcp::service::{NotificationContext, RequestContext};
use rmcp::{ClientHandler, RoleClient};
use serde_json::{Value, json};

use crate::steps::FRAGILE;

/// What was heard so far.
#[derive(Default)]
struct Heard {
    changed: Vec<&'static str>,
    updated: Vec<String>,
    progress: Vec<(ProgressToken, Step)>,
    logged: Vec<(LoggingLevel, Value)>,
    asked: Vec<String>,
    /// It offers to answer the server's questions.
    answers: bool,
    /// Its roots; without any it does not offer to name them.
    roots: Vec<Root>,
}

/// One progress message: done, total, text.
pub type Step = (f64, Option<f64>, Option<String>);

#[derive(Clone, Default)]
pub struct Listener(Arc<Mutex<Heard>>);

impl Listener {
    /// One that answers the server's questions.
    pub fn answering() -> Self {
        let listener = Self::default();
        listener.lock().answers = true;
        listener
    }

    /// One that says its roots too.
    pub fn with_roots(roots: &[&str]) -> Self {
        let listener = Self::answering();
        listener.lock().roots = roots.iter().map(|uri| Root::new(*uri)).collect();
        listener
    }

    /// The resources that were said to have changed, each time that it was said.
    pub fn take_updated(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().updated)
    }

    /// The questions of the server.
    pub fn take_asked(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().asked)
    }

    pub fn logged(&self) -> Vec<(LoggingLevel, Value)> {
        self.lock().logged.clone()
    }

    /// The lists that have changed, once for each time that it was told.
    pub fn changed(&self) -> Vec<&'static str> {
        self.lock().changed.clone()
    }

    /// How often this resource was said to have changed.
    pub fn updates(&self, uri: &str) -> usize {
        let heard = self.lock();
        heard
            .updated
            .iter()
            .filter(|updated| *updated == uri)
            .count()
    }

    /// The progress of one call.
    pub fn progress(&self, token: &ProgressToken) -> Vec<Step> {
        let heard = self.lock();
        let own = heard.progress.iter().filter(|(of, _)| of == token);
        own.map(|(_, step)| step.clone()).collect()
    }

    /// Progress messages of any call.
    pub fn all_progress(&self) -> usize {
        self.lock().progress.len()
    }

    fn lock(&self) -> MutexGuard<'_, Heard> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientHandler for Listener {
    fn get_info(&self) -> ClientConfig {
        let mut info = ClientConfig::default();
        if self.lock().answers {
            let builder = ClientCapabilities::builder();
            info.capabilities = builder.enable_sampling().enable_elicitation().build();
        }
        if !self.lock().roots.is_empty() {
            info.capabilities.roots = Some(RootsCapabilities::default());
        }
        info
    }

    async fn list_roots(
        &self,
        _: RequestContext<RoleClient>,
    ) -> Result<ListRootsResult, ErrorData> {
        let mut heard = self.lock();
        heard.asked.push("roots".to_owned());
        Ok(ListRootsResult::new(heard.roots.clone()))
    }

    async fn create_message(
        &self,
        params: CreateMessageRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        let message = serde_json::to_value(&params.messages).unwrap_or_default();
        let question = message[0]["content"]["text"].as_str().unwrap_or_default();
        self.lock().asked.push(question.to_owned());
        let answer = SamplingMessage::assistant_text(format!("{question}? {FRAGILE}"));
        Ok(CreateMessageResult::new(answer, "none".into()))
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let ElicitRequestParams::FormElicitationParams { message, .. } = request else {
            return Err(ErrorData::invalid_params("not a form", None));
        };
        let content = json!({ "name": format!("Ada of {message}") });
        self.lock().asked.push(message);
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(content))
    }

    async fn on_logging_message(
        &self,
        params: LoggingMessageNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.lock().logged.push((params.level, params.data));
    }

    async fn on_progress(
        &self,
        params: ProgressNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        let step = (params.progress, params.total, params.message);
        self.lock().progress.push((params.progress_token, step));
    }

    async fn on_resource_updated(
        &self,
        params: ResourceUpdatedNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.lock().updated.push(params.uri);
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.lock().changed.push("tools");
    }

    async fn on_resource_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.lock().changed.push("resources");
    }

    async fn on_prompt_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.lock().changed.push("prompts");
    }
}
