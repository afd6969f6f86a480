//! A small MCP server of our own on the official Rust SDK, over stdio: a box of seeds.

use rmcp::handler::server::router::{prompt::PromptRouter, tool::ToolRouter};
use rmcp::handler::server::wrapper::{Json, Parameters};
use rmcp::model::{
    Implementation, ListResourceTemplatesResult, ListResourcesResult, PaginatedRequestParams,
    PromptMessage, ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, Resource,
    ResourceContents, ResourceTemplate, Role, ServerCapabilities, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::transport::stdio;
use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt, prompt, prompt_handler, prompt_router, tool,
    tool_handler, tool_router,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const GUIDE: &str = "seeds://guide";
const GUIDE_TEXT: &str = "Sow in spring. Säen im Frühling. 春に種をまく。 🌱\n";
const LABEL: &str = "seeds://label";
/// A GIF of one pixel.
const LABEL_BASE64: &str = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7";
const PACKET_TEMPLATE: &str = "seeds://packet/{number}";
const PACKET: &str = "seeds://packet/";
const PACKETS: u32 = 40;
/// The cursor of the second page of resources.
const SECOND_PAGE: &str = "page-2";

#[derive(Deserialize, JsonSchema)]
struct Planting {
    /// What is sown
    plant: String,
}

#[derive(Deserialize, JsonSchema)]
struct Bed {
    /// Length in centimetres
    length: u32,
    /// Width in centimetres
    width: u32,
    /// Distance from one seed to the next in centimetres
    distance: u32,
}

#[derive(Serialize, JsonSchema)]
struct Plan {
    rows: u32,
    seeds: u32,
    /// Square metres
    area: f64,
    note: String,
}

#[derive(Deserialize, JsonSchema)]
struct Advice {
    /// The plant that the advice is about
    plant: String,
    /// The month, if not the present one
    month: Option<String>,
}

#[derive(Clone)]
struct Seeds {
    tools: ToolRouter<Self>,
    prompts: PromptRouter<Self>,
}

#[tool_router]
impl Seeds {
    /// Says how a plant was sown.
    #[tool(annotations(read_only_hint = true))]
    async fn sow(&self, Parameters(planting): Parameters<Planting>) -> String {
        format!("🌱 {} – gesät, semé, 蒔いた", planting.plant)
    }

    /// Plans how many seeds a bed takes.
    #[tool(annotations(read_only_hint = true))]
    async fn plan(&self, Parameters(bed): Parameters<Bed>) -> Result<Json<Plan>, String> {
        if bed.distance == 0 {
            return Err("a distance of 0 cm takes ∞ seeds".into());
        }
        let rows = bed.width / bed.distance;
        Ok(Json(Plan {
            rows,
            seeds: rows * (bed.length / bed.distance),
            area: f64::from(bed.length) * f64::from(bed.width) / 10_000.0,
            note: format!("{} × {} cm", bed.length, bed.width),
        }))
    }
}

#[prompt_router]
impl Seeds {
    /// Asks for advice about a plant.
    #[prompt]
    async fn advice(&self, Parameters(about): Parameters<Advice>) -> Vec<PromptMessage> {
        let month = about.month.as_deref().unwrap_or("this month");
        vec![
            PromptMessage::new_text(
                Role::User,
                format!("What does „{}“ need in {month}?", about.plant),
            ),
            PromptMessage::new_text(Role::Assistant, "Let me look into the box of seeds."),
        ]
    }
}

#[tool_handler(router = self.tools)]
#[prompt_handler(router = self.prompts)]
impl ServerHandler for Seeds {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_resources()
            .enable_prompts()
            .build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("seeds", "1.2.3").with_title("Box of seeds 🌱"))
            .with_instructions("Call `plan` before `sow`: „erst messen, dann säen“.")
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        match request.and_then(|params| params.cursor).as_deref() {
            None => {
                let guide = Resource::new(GUIDE, "guide")
                    .with_description("When to sow")
                    .with_mime_type("text/plain");
                let mut page = ListResourcesResult::with_all_items(vec![guide]);
                page.next_cursor = Some(SECOND_PAGE.into());
                Ok(page)
            }
            Some(SECOND_PAGE) => {
                let label = Resource::new(LABEL, "label").with_mime_type("image/gif");
                Ok(ListResourcesResult::with_all_items(vec![label]))
            }
            Some(_) => Err(ErrorData::invalid_params("no such page", None)),
        }
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let packet = ResourceTemplate::new(PACKET_TEMPLATE, "packet")
            .with_description("What is in a packet")
            .with_mime_type("text/plain");
        Ok(ListResourceTemplatesResult::with_all_items(vec![packet]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let uri = request.uri;
        let contents = match uri.as_str() {
            GUIDE => ResourceContents::text(GUIDE_TEXT, uri),
            LABEL => ResourceContents::blob(LABEL_BASE64, uri).with_mime_type("image/gif"),
            _ => match packet(&uri) {
                Some(number) => {
                    ResourceContents::text(format!("Packet № {number}: {} seeds", number * 12), uri)
                }
                None => {
                    let message = format!("no such resource: {uri}");
                    return Err(ErrorData::resource_not_found(message, None));
                }
            },
        };
        Ok(ReadResourceResult::new(vec![contents]).into())
    }
}

fn packet(uri: &str) -> Option<u32> {
    let number = uri.strip_prefix(PACKET)?.parse().ok()?;
    (1..=PACKETS).contains(&number).then_some(number)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seeds = Seeds {
        tools: Seeds::tool_router(),
        prompts: Seeds::prompt_router(),
    };
    seeds.serve(stdio()).await?.waiting().await?;
    Ok(())
}
