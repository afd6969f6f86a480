//! What a request gets: the order of the checks (Host and Origin, path, method)
//! and the bytes of the answer. Knows no socket. No answer ever allows another
//! origin to read it, and each one ends its connection.

use std::time::SystemTime;

use ::http::StatusCode;

use super::{Readiness, Source, metrics};
use crate::http::guard::Refusal;
use crate::http::head::{Head, Method};
use crate::http::policy::Policy;
use crate::http::response::{date_line, field};

const TEXT: &str = "text/plain; charset=utf-8";

/// An answer before it is bytes.
#[derive(Debug)]
pub(super) struct Answer {
    status: u16,
    content_type: &'static str,
    body: String,
    /// The request was HEAD: everything but the body is sent.
    head_only: bool,
}

impl Answer {
    fn text(status: u16, sentence: &str) -> Answer {
        Answer {
            status,
            content_type: TEXT,
            body: format!("{sentence}\n"),
            head_only: false,
        }
    }

    /// The answer to what is no request that can be read.
    pub(super) fn refusal(refusal: Refusal) -> Answer {
        Answer::text(refusal.status, refusal.reason)
    }

    /// The answer to a request.
    pub(super) fn to(head: &Head, policy: &Policy, source: &dyn Source) -> Answer {
        let mut answer = decide(head, policy, source);
        answer.head_only = head.method == Method::Head;
        answer
    }

    /// The whole response.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let code = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let phrase = code.canonical_reason().unwrap_or_default();
        let mut out = format!("HTTP/1.1 {} {phrase}\r\n", code.as_str()).into_bytes();
        out.reserve(256 + self.body.len());
        out.extend_from_slice(&date_line(SystemTime::now()));
        field(&mut out, "connection", b"close");
        field(&mut out, "cache-control", b"no-store");
        if self.status == 405 {
            field(&mut out, "allow", b"GET, HEAD");
        }
        field(&mut out, "content-type", self.content_type.as_bytes());
        let length = self.body.len().to_string();
        field(&mut out, "content-length", length.as_bytes());
        out.extend_from_slice(b"\r\n");
        if !self.head_only {
            out.extend_from_slice(self.body.as_bytes());
        }
        out
    }
}

fn decide(head: &Head, policy: &Policy, source: &dyn Source) -> Answer {
    if let Err(forbidden) = policy.check(head) {
        return Answer::text(403, &forbidden.to_string());
    }
    let path = match head.path() {
        "/healthz" => healthy,
        "/readyz" => readiness,
        "/metrics" => numbers,
        _ => return Answer::text(404, "there are /healthz, /readyz and /metrics"),
    };
    match head.method {
        Method::Get | Method::Head => path(source),
        _ => Answer::text(405, "the methods are GET and HEAD"),
    }
}

/// The process ends when one of its threads does, so that an answer at all says
/// that they live.
fn healthy(_: &dyn Source) -> Answer {
    Answer::text(200, "ok")
}

fn readiness(source: &dyn Source) -> Answer {
    let readiness = source.ready();
    let status = match readiness {
        Readiness::Ready => 200,
        Readiness::Starting | Readiness::UpstreamDown | Readiness::Draining => 503,
    };
    let mut answer = Answer::text(status, readiness.word());
    for route in source.routes() {
        route.write(&mut answer.body);
    }
    answer
}

fn numbers(source: &dyn Source) -> Answer {
    match metrics::render(source.snapshot()) {
        Ok(body) => Answer {
            status: 200,
            content_type: metrics::CONTENT_TYPE,
            body,
            head_only: false,
        },
        Err(_) => Answer::text(500, "the metrics cannot be written"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::fake::Fake;
    use crate::admin::{RouteHealth, UpstreamHealth, UpstreamState};
    use crate::http::{guard::HeadGuard, head};

    fn response(readiness: Readiness, request: &str) -> String {
        response_of(&Fake::new(readiness), request)
    }

    fn response_of(source: &dyn Source, request: &str) -> String {
        let extent = HeadGuard::new()
            .advance(request.as_bytes())
            .unwrap()
            .unwrap();
        let head = head::read(request.as_bytes(), extent).unwrap();
        let policy = Policy::new(true, &["gw.example".to_owned()], &[]).unwrap();
        let bytes = Answer::to(&head, &policy, source).bytes();
        String::from_utf8(bytes).unwrap()
    }

    fn request(method: &str, path: &str, fields: &str) -> String {
        let text = format!("{method} {path} HTTP/1.1\r\nHost: localhost:9464\r\n{fields}\r\n");
        response(Readiness::Ready, &text)
    }

    fn get(path: &str) -> String {
        request("GET", path, "")
    }

    fn body(response: &str) -> &str {
        response.split_once("\r\n\r\n").unwrap().1
    }

    #[test]
    fn health_says_ok_whatever_the_readiness() {
        for readiness in [Readiness::Ready, Readiness::UpstreamDown] {
            let text = "GET /healthz?x=1 HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n";
            let response = response(readiness, text);
            assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
            assert_eq!(body(&response), "ok\n");
        }
    }

    #[test]
    fn readiness_is_a_status_and_one_word() {
        for (readiness, status, word) in [
            (Readiness::Ready, "200 OK", "ready\n"),
            (Readiness::Starting, "503 Service Unavailable", "starting\n"),
            (
                Readiness::UpstreamDown,
                "503 Service Unavailable",
                "upstream_down\n",
            ),
            (Readiness::Draining, "503 Service Unavailable", "draining\n"),
        ] {
            let response = response(readiness, "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n");
            assert!(response.starts_with(&format!("HTTP/1.1 {status}\r\n")));
            assert_eq!(body(&response), word);
        }
    }

    #[test]
    fn readiness_lists_the_routes_and_their_upstreams() {
        let source = Fake {
            routes: vec![RouteHealth {
                name: "tools".into(),
                upstreams: vec![UpstreamHealth {
                    name: "one".into(),
                    is_required: false,
                    state: UpstreamState::Down,
                }],
            }],
            ..Fake::new(Readiness::UpstreamDown)
        };
        let text = "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let response = response_of(&source, text);
        assert!(response.starts_with("HTTP/1.1 503 "), "{response}");
        let expected = "upstream_down\nroute=tools upstream_down\nroute=tools upstream=one down\n";
        assert_eq!(body(&response), expected);
        let length = format!("\r\ncontent-length: {}\r\n", expected.len());
        assert!(response.contains(&length), "{response}");
    }

    #[test]
    fn metrics_come_as_prometheus_text() {
        let response = get("/metrics");
        assert!(
            response.contains("\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8\r\n")
        );
        assert!(body(&response).contains("ringway_build_info{version=\"1.2.3\"} 1\n"));
        let length = format!("\r\ncontent-length: {}\r\n", body(&response).len());
        assert!(response.contains(&length));
    }

    #[test]
    fn head_gets_the_fields_of_get_and_no_body() {
        for path in ["/healthz", "/metrics", "/none"] {
            let get = get(path);
            let head = request("HEAD", path, "");
            assert_eq!(body(&head), "");
            assert_eq!(fields(&head), fields(&get), "{path}");
        }
    }

    /// Without the date, which may move on between two answers.
    fn fields(response: &str) -> Vec<&str> {
        let head = response.split_once("\r\n\r\n").unwrap().0;
        head.split("\r\n")
            .filter(|line| !line.starts_with("date:"))
            .collect()
    }

    #[test]
    fn other_methods_are_told_which_ones_there_are() {
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "get"] {
            let response = request(method, "/metrics", "");
            assert!(response.starts_with("HTTP/1.1 405 "), "{response}");
            assert!(response.contains("\r\nallow: GET, HEAD\r\n"));
        }
    }

    #[test]
    fn only_the_three_paths_exist() {
        for path in ["/", "/metrics/", "/mcp", "/%6detrics", "/Healthz"] {
            assert!(get(path).starts_with("HTTP/1.1 404 "), "{path}");
        }
    }

    #[test]
    fn a_foreign_host_or_origin_is_refused_on_every_path() {
        for path in ["/healthz", "/readyz", "/metrics", "/none"] {
            let rebound = format!("GET {path} HTTP/1.1\r\nHost: evil.example\r\n\r\n");
            let rebound = response(Readiness::Ready, &rebound);
            assert!(rebound.starts_with("HTTP/1.1 403 "), "{rebound}");
            let page = request("GET", path, "Origin: https://evil.example\r\n");
            assert!(page.starts_with("HTTP/1.1 403 "), "{page}");
        }
        let allowed = "GET /healthz HTTP/1.1\r\nHost: gw.example\r\n\r\n";
        assert!(response(Readiness::Ready, allowed).starts_with("HTTP/1.1 200 "));
    }

    #[test]
    fn no_answer_speaks_cors_and_each_one_closes() {
        for method in ["GET", "OPTIONS"] {
            let origin = "Origin: http://localhost\r\nAccess-Control-Request-Method: GET\r\n";
            let response = request(method, "/metrics", origin);
            assert!(!response.contains("access-control"), "{response}");
            assert!(response.contains("\r\nconnection: close\r\n"));
            assert!(response.contains("\r\ncache-control: no-store\r\n"));
        }
    }
}
