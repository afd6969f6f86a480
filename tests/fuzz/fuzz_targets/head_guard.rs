#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::targets::head_guard::head_guard(data));
