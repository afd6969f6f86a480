//! The client's own handler of notifications: it notes what the server says, in the
//! order in which rmcp hands it over.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rmcp::model::{ProgressNotificationParam, ProgressToken, ResourceUpdatedNotificationParam};
use rmcp::service::NotificationContext;
use rmcp::{ClientHandler, RoleClient};

/// What was heard so far.
#[derive(Default)]
struct Heard {
    changed: Vec<&'static str>,
    updated: Vec<String>,
    progress: Vec<(ProgressToken, Step)>,
}

/// One progress message: done, total, text.
pub type Step = (f64, Option<f64>, Option<String>);

#[derive(Clone, Default)]
pub struct Listener(Arc<Mutex<Heard>>);

impl Listener {
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
