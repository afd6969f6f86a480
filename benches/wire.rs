//! What a message costs in `wire`: the scan of client bodies and server lines, the splice, and
//! the framing of lines, over the sizes that matter (a usual call, many escapes, large, huge).
//!
//! `cargo bench --bench wire`

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ringway::wire::lines::{Line, LineBuffer};
use ringway::wire::scan::scan;
use ringway::wire::splice::{Edit, splice};

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

/// The same message in the sizes of the table in the module docs.
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

criterion_group!(benches, bench_scan, bench_splice, bench_lines);
criterion_main!(benches);
