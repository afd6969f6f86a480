//! What a message costs in `wire` and as an HTTP response: the scan of client bodies and server
//! lines by kind and size, the splice, the framing of lines, the encoding of SSE, the heads and
//! parts of responses.
//!
//! `cargo bench --bench wire`

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ringway::http::response::{self, Manner, OriginAnswer};
use ringway::wire::lines::{Line, LineBuffer};
use ringway::wire::notice::updated_frame;
use ringway::wire::scan::{batch, scan};
use ringway::wire::splice::{Edit, splice};
use ringway::wire::sse;

const KIB: usize = 1 << 10;

/// A `tools/call` around `text`, which is JSON string content.
fn request(text: &str) -> Vec<u8> {
    format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":123456,\"method\":\"tools/call\",\"params\":{{\"name\":\"echo\",\
         \"arguments\":{{\"text\":\"{text}\"}},\"_meta\":{{\"progressToken\":\"token-17\"}}}}}}"
    )
    .into_bytes()
}

/// Its response, as a server writes it on one line.
fn response(text: &str) -> Vec<u8> {
    format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":281474976710657,\"result\":{{\"content\":[{{\"type\":\"text\",\
         \"text\":\"{text}\"}}],\"isError\":false}}}}"
    )
    .into_bytes()
}

/// The same message in the sizes that matter: a usual call, many escapes, large, huge.
fn sizes(message: fn(&str) -> Vec<u8>) -> Vec<(&'static str, Vec<u8>)> {
    let frame = message("").len();
    let plain = |bytes: usize| message(&"a plain word ".repeat(bytes)[..bytes - frame]);
    vec![
        ("211 B", plain(211)),
        (
            "2.3 KB escaped",
            message(&r#"line \"one\"\n\u00e9\\ "#.repeat(95)),
        ),
        ("64 KiB", plain(64 * KIB)),
        ("100 KB", plain(100_000)),
        ("1 MiB", plain(KIB * KIB)),
    ]
}

/// A list result of many small objects: more brackets than the depth check can settle by count.
fn list() -> Vec<u8> {
    let tool = r#"{"name":"a_tool","description":"does a thing","inputSchema":{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}}"#;
    let tools = vec![tool; 500].join(",");
    format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{{\"tools\":[{tools}]}}}}").into_bytes()
}

fn bench_scan(criterion: &mut Criterion) {
    for (direction, message) in [
        ("request", request as fn(&str) -> Vec<u8>),
        ("response", response),
    ] {
        let mut group = criterion.benchmark_group(format!("scan {direction}"));
        let mut texts = sizes(message);
        if direction == "response" {
            texts.push(("65 KB list", list()));
        }
        for (size, text) in &texts {
            group.throughput(Throughput::Bytes(text.len() as u64));
            group.bench_function(BenchmarkId::from_parameter(size), |bencher| {
                bencher.iter(|| scan(black_box(text)).expect("a valid message").kind);
            });
        }
        group.finish();
    }
}

/// Messages of every kind that is told apart, in the size that they usually have.
const KINDS: &[(&str, &str)] = &[
    (
        "request",
        r#"{"jsonrpc":"2.0","id":123456,"method":"tools/call","params":{"name":"echo","arguments":{"text":"a plain word"}}}"#,
    ),
    (
        "request with a token",
        r#"{"jsonrpc":"2.0","id":123456,"method":"tools/call","params":{"name":"echo","arguments":{"text":"a plain word"},"_meta":{"progressToken":"token-17"}}}"#,
    ),
    (
        "initialize",
        r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"roots":{"listChanged":true}},"clientInfo":{"name":"client","version":"1.0.0"}}}"#,
    ),
    (
        "notification",
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":123456,"reason":"no longer wanted"}}"#,
    ),
    (
        "response",
        r#"{"jsonrpc":"2.0","id":281474976710657,"result":{"content":[{"type":"text","text":"a plain word"}],"isError":false}}"#,
    ),
    (
        "error",
        r#"{"jsonrpc":"2.0","id":281474976710657,"error":{"code":-32602,"message":"Unknown tool","data":{"name":"ecko"}}}"#,
    ),
    (
        "progress",
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":281474976710657,"progress":3,"total":10,"message":"step 3 of 10"}}"#,
    ),
    (
        "tasks request",
        r#"{"jsonrpc":"2.0","id":123456,"method":"tasks/get","params":{"taskId":"786512e2-9e0d-44bd-8f29-789f320fe840"}}"#,
    ),
    (
        "tasks status",
        r#"{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{"taskId":"786512e2-9e0d-44bd-8f29-789f320fe840","status":"working","createdAt":"2025-11-25T10:30:00Z","ttl":60000,"pollInterval":5000}}"#,
    ),
    (
        "list changed",
        r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#,
    ),
    (
        "resource updated",
        r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///a/project/src/main.rs"}}"#,
    ),
];

fn bench_scan_kinds(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("scan kind");
    for (kind, text) in KINDS {
        let text = text.as_bytes();
        group.throughput(Throughput::Bytes(text.len() as u64));
        group.bench_function(*kind, |bencher| {
            bencher.iter(|| scan(black_box(text)).expect("a valid message").kind);
        });
    }
    let (_, request) = KINDS[0];
    let text = format!("[{}]", [request; 10].join(",")).into_bytes();
    group.throughput(Throughput::Bytes(text.len() as u64));
    group.bench_function("batch of 10 requests", |bencher| {
        bencher.iter(|| {
            let spans = batch(black_box(&text)).expect("a valid batch");
            let scanned = spans.iter().map(|span| scan(span.of(&text)));
            scanned.filter(Result::is_ok).count()
        });
    });
    group.finish();
}

fn bench_splice(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("splice request");
    let mut texts = sizes(request);
    let pretty = texts[0].1.escape_ascii().to_string().replace(',', ",\n  ");
    texts.push(("211 B pretty", pretty.replace('\\', "").into_bytes()));
    for (size, text) in &texts {
        let envelope = scan(text).expect("a valid message");
        let fields = [envelope.id, envelope.meta_progress_token];
        let spans = fields.map(|field| field.expect("both are there").span);
        let mut out = Vec::new();
        group.throughput(Throughput::Bytes(text.len() as u64));
        group.bench_function(BenchmarkId::from_parameter(size), |bencher| {
            bencher.iter(|| {
                out.clear();
                let with = black_box(&b"281474976710657"[..]);
                splice(&mut out, text, &mut spans.map(|span| Edit { span, with }));
                out.len()
            });
        });
    }
    group.finish();
}

/// Reads of 64 KiB, as from a pipe; the time is that of one read.
fn bench_lines(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("lines, a read of 64 KiB");
    for (size, bytes) in [("211 B", 211), ("64 KiB", 64 * KIB), ("1 MiB", KIB * KIB)] {
        let mut line = response(&"x".repeat(bytes - response("").len() - 1));
        line.push(b'\n');
        let mut stream = line.iter().copied().cycle();
        let reads: Vec<Vec<u8>> = (0..64)
            .map(|_| stream.by_ref().take(64 * KIB).collect())
            .collect();
        let mut reads = reads.iter().cycle();
        let mut buffer = LineBuffer::new(64 * KIB, 64 << 20);
        group.throughput(Throughput::Bytes(64 * KIB as u64));
        group.bench_function(BenchmarkId::from_parameter(size), |bencher| {
            bencher.iter(|| {
                let read = reads.next().expect("endless");
                let (mut bytes, filled) = buffer.lend();
                bytes.extend_from_slice(read);
                buffer.restore(bytes, filled + read.len());
                let mut sum = 0;
                while let Some(Line::Text(line)) = buffer.next_line() {
                    sum += line.len();
                }
                sum
            });
        });
    }
    group.finish();
}

/// Messages for responses.
fn answers() -> [(&'static str, Vec<u8>); 3] {
    let frame = response("").len();
    let plain = |bytes: usize| response(&"a plain word ".repeat(bytes)[..bytes - frame]);
    [
        ("211 B", plain(211)),
        ("64 KiB", plain(64 * KIB)),
        ("1 MiB", plain(KIB * KIB)),
    ]
}

fn bench_sse(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("sse frame");
    for (size, message) in &answers() {
        let mut out = Vec::new();
        group.throughput(Throughput::Bytes(message.len() as u64));
        group.bench_function(BenchmarkId::from_parameter(size), |bencher| {
            bencher.iter(|| {
                out.clear();
                sse::frame(&mut out, black_box(message));
                out.len()
            });
        });
    }
    group.bench_function("resource updated", |bencher| {
        bencher.iter(|| updated_frame(black_box("file:///a/project/src/main.rs")).len());
    });
    group.finish();
}

fn bench_responses(criterion: &mut Criterion) {
    let manner = Manner {
        http11: true,
        close: false,
        keep_alive_10: false,
        head_only: false,
        origin: OriginAnswer::None,
    };
    let date = response::date_line(std::time::UNIX_EPOCH);
    let mut group = criterion.benchmark_group("response");
    for (size, message) in &answers() {
        group.throughput(Throughput::Bytes(message.len() as u64));
        // A buffer of its own each, as in the product: it is given to the socket.
        group.bench_function(BenchmarkId::new("json head and body", size), |bencher| {
            bencher.iter(|| {
                let mut out = Vec::new();
                response::json_head(&mut out, &manner, &date, message.len());
                out.extend_from_slice(black_box(message));
                out
            });
        });
        let mut event = Vec::new();
        sse::frame(&mut event, message);
        let mut out = Vec::new();
        group.bench_function(BenchmarkId::new("sse part", size), |bencher| {
            bencher.iter(|| {
                out.clear();
                response::part(&mut out, manner.http11, black_box(&event));
                out.len()
            });
        });
    }
    group.throughput(Throughput::Elements(1));
    group.bench_function("sse head", |bencher| {
        bencher.iter(|| {
            let mut out = Vec::new();
            response::sse_head(&mut out, black_box(&manner), &date, b"");
            out
        });
    });
    group.bench_function("202 without a body", |bencher| {
        bencher.iter(|| response::complete(black_box(&manner), &date, 202, b"", b""));
    });
    group.finish();
}

criterion_group!(
    benches,
    bench_scan,
    bench_scan_kinds,
    bench_splice,
    bench_lines,
    bench_sse,
    bench_responses
);
criterion_main!(benches);
