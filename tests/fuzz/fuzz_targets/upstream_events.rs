#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::targets::upstream_events::upstream_events(data));
