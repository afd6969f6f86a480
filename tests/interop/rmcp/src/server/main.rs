//! A server on the official Rust SDK over Streamable HTTP, with the offers that
//! `servers/README.md` describes. It ends when its stdin does, or
//! by SIGTERM.

mod offers;

use std::convert::Infallible;
use std::io::Read;
use std::sync::Arc;

use hyper::Method;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};

use crate::offers::{Offers, note};

type Service = StreamableHttpService<Offers, LocalSessionManager>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let mut stop = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        stop.recv().await;
        std::process::exit(0);
    });
    let sessions = Arc::new(LocalSessionManager::default());
    let mut forget = signal(SignalKind::user_defined1())?;
    let forgotten = sessions.clone();
    tokio::spawn(async move {
        while forget.recv().await.is_some() {
            forgotten.sessions.write().await.clear();
            note("forgotten");
        }
    });
    let service = Service::new(
        || Ok(Offers::default()),
        sessions,
        StreamableHttpServerConfig::default(),
    );
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("rmcp listening on http://{}/mcp", listener.local_addr()?);
    loop {
        let (connection, _) = listener.accept().await?;
        tokio::spawn(serve(connection, service.clone()));
    }
}

async fn serve(connection: TcpStream, service: Service) {
    let answer = service_fn(move |request| {
        let service = service.clone();
        async move {
            let is_delete = request.method() == Method::DELETE;
            let response = service.handle(request).await;
            if is_delete && response.status().is_success() {
                note("deleted");
            }
            Ok::<_, Infallible>(response)
        }
    });
    // A peer that goes away is no fault of the server.
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(connection), answer)
        .await;
}
