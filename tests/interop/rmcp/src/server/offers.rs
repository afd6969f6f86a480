//! What the server offers, in the terms of rmcp.

// Sampling and logging are of the versions with sessions, which are the ones spoken here.
#![expect(deprecated)]

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock,
    CreateMessageRequestParams, ElicitRequestParams, ErrorData, GetPromptRequestParams,
    GetPromptResponse, GetPromptResult, Implementation, ListPromptsResult, ListResourcesResult,
    ListToolsResult, LoggingLevel, LoggingMessageNotificationParam, PaginatedRequestParams,
    ProgressNotificationParam, Prompt, PromptArgument, PromptMessage, ReadResourceRequestParams,
    ReadResourceResponse, ReadResourceResult, Resource, ResourceContents,
    ResourceUpdatedNotificationParam, Role, SamplingMessage, ServerCapabilities, ServerConfig,
    SetLevelRequestParams, SubscribeRequestParams, Tool, UnsubscribeRequestParams,
};
use rmcp::service::{NotificationContext, RequestContext, ServiceError};
use rmcp::{RoleServer, ServerHandler};
use serde_json::{Value, json};

const NOTE: &str = "interop://note";

/// Appends a line to the file of events.
pub fn note(event: &str) {
    let path = std::env::var("INTEROP_EVENTS").expect("INTEROP_EVENTS names a file");
    let file = OpenOptions::new().append(true).create(true).open(path);
    // One write, so that no line is seen half.
    let written = file.and_then(|mut file| file.write_all(format!("{event}\n").as_bytes()));
    written.expect("the file of events can be written");
}

/// One for each session.
#[derive(Default)]
pub struct Offers {
    is_subscribed: AtomicBool,
}

type Context = RequestContext<RoleServer>;

fn tool(name: &'static str, arguments: &[(&str, &str)]) -> Tool {
    let properties = arguments
        .iter()
        .map(|(name, kind)| ((*name).to_owned(), json!({ "type": kind })));
    let properties: serde_json::Map<String, Value> = properties.collect();
    let required: Vec<&str> = arguments.iter().map(|(name, _)| *name).collect();
    let schema = json!({ "type": "object", "properties": properties, "required": required });
    let schema: serde_json::Map<String, Value> =
        serde_json::from_value(schema).expect("it is an object");
    Tool::new(name, "See servers/README.md", Arc::new(schema))
}

fn fault(error: ServiceError) -> ErrorData {
    ErrorData::internal_error(error.to_string(), None)
}

fn text_argument<'a>(request: &'a CallToolRequestParams, name: &str) -> Result<&'a str, ErrorData> {
    let argument = request.arguments.as_ref().and_then(|all| all.get(name));
    argument
        .and_then(Value::as_str)
        .ok_or_else(|| ErrorData::invalid_params(format!("no {name}"), None))
}

impl Offers {
    async fn steps(&self, count: u64, context: &Context) -> Result<String, ErrorData> {
        if let Some(token) = context.meta.get_progress_token() {
            for step in 1..=count {
                let progress = ProgressNotificationParam::new(token.clone(), step as f64)
                    .with_total(count as f64)
                    .with_message(format!("step {step} of {count}"));
                let told = context.peer.notify_progress(progress).await;
                told.map_err(fault)?;
            }
        }
        Ok(format!("done after {count} steps"))
    }

    async fn wait(&self, context: &Context) -> Result<String, ErrorData> {
        note("wait began");
        context.ct.cancelled().await;
        note("wait cancelled");
        Ok("cancelled".into())
    }

    async fn log(&self, text: &str, context: &Context) -> Result<String, ErrorData> {
        let message = LoggingMessageNotificationParam::new(LoggingLevel::Info, json!(text));
        let told = context.peer.notify_logging_message(message).await;
        told.map_err(fault)?;
        Ok("logged".into())
    }

    async fn ask_model(&self, question: &str, context: &Context) -> Result<String, ErrorData> {
        let question = SamplingMessage::user_text(question);
        let params = CreateMessageRequestParams::new(vec![question], 100);
        let answer = context.peer.create_message(params).await.map_err(fault)?;
        let message = serde_json::to_value(&answer.message).unwrap_or_default();
        let said = message["content"]["text"].as_str().unwrap_or_default();
        Ok(format!("The model said: {said}"))
    }

    async fn ask_user(&self, question: &str, context: &Context) -> Result<String, ErrorData> {
        let schema = json!({
            "type": "object",
            "properties": { "name": { "type": "string" } },
            "required": ["name"],
        });
        let params = ElicitRequestParams::FormElicitationParams {
            meta: None,
            message: question.to_owned(),
            requested_schema: serde_json::from_value(schema).expect("it is a schema"),
        };
        let answer = context.peer.create_elicitation(params).await;
        let answer = serde_json::to_value(answer.map_err(fault)?).unwrap_or_default();
        let action = answer["action"].as_str().unwrap_or_default();
        let name = answer["content"]["name"].as_str().unwrap_or_default();
        Ok(format!("The user said: {action} {name}"))
    }

    async fn touch(&self, context: &Context) -> Result<String, ErrorData> {
        if !self.is_subscribed.load(Ordering::Relaxed) {
            return Ok("nobody has subscribed".into());
        }
        let update = ResourceUpdatedNotificationParam::new(NOTE);
        let told = context.peer.notify_resource_updated(update).await;
        told.map_err(fault)?;
        Ok("touched".into())
    }
}

impl ServerHandler for Offers {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_prompts()
            .enable_logging()
            .build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("interop-rmcp", "0.0.0"))
    }

    async fn on_initialized(&self, _: NotificationContext<RoleServer>) {
        note("initialized");
    }

    async fn set_level(&self, _: SetLevelRequestParams, _: Context) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: Context,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(vec![
            tool("echo", &[("message", "string")]),
            tool("steps", &[("count", "integer")]),
            tool("wait", &[]),
            tool("log", &[("text", "string")]),
            tool("ask_model", &[("question", "string")]),
            tool("ask_user", &[("question", "string")]),
            tool("touch", &[]),
        ]))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: Context,
    ) -> Result<CallToolResponse, ErrorData> {
        let said = match request.name.as_ref() {
            "echo" => text_argument(&request, "message")?.to_owned(),
            "steps" => {
                let count = request
                    .arguments
                    .as_ref()
                    .and_then(|all| all["count"].as_u64());
                self.steps(count.unwrap_or_default(), &context).await?
            }
            "wait" => self.wait(&context).await?,
            "log" => self.log(text_argument(&request, "text")?, &context).await?,
            "ask_model" => {
                let question = text_argument(&request, "question")?;
                self.ask_model(question, &context).await?
            }
            "ask_user" => {
                let question = text_argument(&request, "question")?;
                self.ask_user(question, &context).await?
            }
            "touch" => self.touch(&context).await?,
            name => return Err(ErrorData::invalid_params(format!("no tool {name}"), None)),
        };
        Ok(CallToolResult::success(vec![ContentBlock::text(said)]).into())
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: Context,
    ) -> Result<ListResourcesResult, ErrorData> {
        let note = Resource::new(NOTE, "note").with_mime_type("text/plain");
        Ok(ListResourcesResult::with_all_items(vec![note]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: Context,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let contents = ResourceContents::text("a note", request.uri);
        Ok(ReadResourceResult::new(vec![contents]).into())
    }

    async fn subscribe(&self, _: SubscribeRequestParams, _: Context) -> Result<(), ErrorData> {
        self.is_subscribed.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn unsubscribe(&self, _: UnsubscribeRequestParams, _: Context) -> Result<(), ErrorData> {
        self.is_subscribed.store(false, Ordering::Relaxed);
        Ok(())
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: Context,
    ) -> Result<ListPromptsResult, ErrorData> {
        let name = PromptArgument::new("name").with_required(true);
        let greet = Prompt::new("greet", Some("Greets"), Some(vec![name]));
        Ok(ListPromptsResult::with_all_items(vec![greet]))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _: Context,
    ) -> Result<GetPromptResponse, ErrorData> {
        let name = request
            .arguments
            .as_ref()
            .and_then(|all| all["name"].as_str());
        let text = format!("Hello, {}!", name.unwrap_or("nobody"));
        Ok(GetPromptResult::new(vec![PromptMessage::new_text(Role::User, text)]).into())
    }
}
