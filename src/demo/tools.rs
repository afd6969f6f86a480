//! The tools: their descriptions, and what a `tools/call` of each does. Wrong
//! arguments are the tool's own failure (`isError`, a sentence that a model can
//! act on), as the official SDKs have it; only an unknown tool is a JSON-RPC
//! error.

use std::time::Duration;

use super::answer::{self, code};
use super::catalogue::{Prompts, Resources};
use super::extras::Extras;
use super::limits::{
    BIG_BYTES_MAX, EXTRAS_MAX, SLOW_INTERVAL_MS_MAX, SLOW_STEPS_MAX, URI_BYTES_MAX,
};
use super::message::{Arguments, Raw};
use super::slow::{SlowCall, SlowCalls};

const STEPS_DEFAULT: u64 = 5;
const INTERVAL_MS_DEFAULT: u64 = 200;

/// The built-in tools as a JSON list without its closing bracket. The bounds
/// are those of `limits`; a test compares them.
const TOOLS: &str = concat!(
    r#"{"tools":["#,
    r#"{"name":"echo","description":"Returns the message unchanged","inputSchema":{"type":"object","properties":{"message":{"type":"string","description":"What to return"}},"required":["message"]}},"#,
    r#"{"name":"add","description":"Adds two numbers; integers exactly","inputSchema":{"type":"object","properties":{"a":{"type":"number"},"b":{"type":"number"}},"required":["a","b"]}},"#,
    r#"{"name":"slow","description":"Reports progress step by step, then returns","inputSchema":{"type":"object","properties":{"steps":{"type":"integer","minimum":1,"maximum":1000,"default":5,"description":"Progress messages"},"interval_ms":{"type":"integer","minimum":0,"maximum":60000,"default":200,"description":"Milliseconds before each step"}}}},"#,
    r#"{"name":"big","description":"Returns a text of the given size","inputSchema":{"type":"object","properties":{"bytes":{"type":"integer","minimum":0,"maximum":67108864,"description":"Size of the text in bytes"}},"required":["bytes"]}},"#,
    r#"{"name":"touch","description":"Changes a resource and tells its subscribers","inputSchema":{"type":"object","properties":{"uri":{"type":"string","description":"The resource, for example demo://clock"}},"required":["uri"]}},"#,
    r#"{"name":"grow","description":"Adds an entry to a list and says that the list has changed","inputSchema":{"type":"object","properties":{"list":{"type":"string","enum":["tools","resources","prompts"],"default":"tools","description":"Which list"}}}}"#
);

/// The tools that `grow` has added.
#[derive(Debug, Default)]
pub(super) struct Tools {
    extras: Extras,
}

/// One `tools/call`, its name apart.
pub(super) struct Call<'a> {
    /// Raw JSON text.
    pub(super) id: &'a str,
    /// Raw JSON text.
    pub(super) token: Option<&'a str>,
    pub(super) arguments: Arguments<'a>,
    /// Since the server's start.
    pub(super) now: Duration,
}

impl Tools {
    /// The result of `tools/list`.
    pub(super) fn list(&self) -> String {
        let mut list = String::from(TOOLS);
        for name in self.extras.names() {
            list.push_str(&format!(
                r#",{{"name":"{name}","description":"Returns its own name","inputSchema":{{"type":"object","properties":{{}}}}}}"#
            ));
        }
        list.push_str("]}");
        list
    }

    /// Answers one call, or starts it if it takes time.
    pub(super) fn call(
        &mut self,
        name: &str,
        call: &Call<'_>,
        resources: &mut Resources,
        prompts: &mut Prompts,
        slow: &mut SlowCalls,
        out: &mut Vec<u8>,
    ) {
        let outcome = match name {
            "echo" => echo(call, out),
            "add" => add(call, out),
            "slow" => start_slow(call, slow, out),
            "big" => big(call, out),
            "touch" => touch(call, resources, out),
            "grow" => self.grow(call, resources, prompts, out),
            _ if self.extras.holds(name) => {
                answer::tool_text(out, call.id, name);
                Ok(())
            }
            _ => {
                answer::error(out, Some(call.id), code::INVALID_PARAMS, "Unknown tool");
                Ok(())
            }
        };
        if let Err(sentence) = outcome {
            answer::tool_failure(out, call.id, &sentence);
        }
    }

    fn grow(
        &mut self,
        call: &Call<'_>,
        resources: &mut Resources,
        prompts: &mut Prompts,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let list = match call.arguments.list.0 {
            Some(_) => call.arguments.list.text(),
            None => Some("tools".into()),
        };
        let (list, extras) = match list.as_deref() {
            Some("tools") => ("tools", &mut self.extras),
            Some("resources") => ("resources", &mut resources.extras),
            Some("prompts") => ("prompts", &mut prompts.extras),
            _ => return Err("The argument list must be tools, resources or prompts.".into()),
        };
        let name = extras.add().ok_or_else(|| {
            format!("The list already has {EXTRAS_MAX} extra entries; it grows no further.")
        })?;
        answer::list_changed(out, list);
        answer::tool_text(out, call.id, &format!("added {name} to the {list}"));
        Ok(())
    }
}

fn echo(call: &Call<'_>, out: &mut Vec<u8>) -> Result<(), String> {
    let message = call.arguments.message.string_json();
    let message = message.ok_or("The argument message must be a string.")?;
    answer::tool_text_json(out, call.id, message);
    Ok(())
}

fn add(call: &Call<'_>, out: &mut Vec<u8>) -> Result<(), String> {
    let a = call.arguments.a.number_json();
    let b = call.arguments.b.number_json();
    let (Some(a), Some(b)) = (a, b) else {
        return Err("The arguments a and b must be numbers.".into());
    };
    let sum = sum(a, b).ok_or("The sum is too large for a number.")?;
    answer::tool_text(out, call.id, &sum);
    Ok(())
}

/// The sum of two JSON numbers: exact for integers of up to 128 bits, else as
/// doubles. `None` if it is not finite.
fn sum(a: &str, b: &str) -> Option<String> {
    if let (Ok(a), Ok(b)) = (a.parse::<i128>(), b.parse::<i128>())
        && let Some(sum) = a.checked_add(b)
    {
        return Some(sum.to_string());
    }
    let sum = a.parse::<f64>().ok()? + b.parse::<f64>().ok()?;
    sum.is_finite().then(|| sum.to_string())
}

fn start_slow(call: &Call<'_>, slow: &mut SlowCalls, out: &mut Vec<u8>) -> Result<(), String> {
    let arguments = &call.arguments;
    let steps = integer(
        arguments.steps,
        "steps",
        1,
        SLOW_STEPS_MAX,
        Some(STEPS_DEFAULT),
    )?;
    let interval_ms = integer(
        arguments.interval_ms,
        "interval_ms",
        0,
        SLOW_INTERVAL_MS_MAX,
        Some(INTERVAL_MS_DEFAULT),
    )?;
    let started = SlowCall {
        id: call.id.into(),
        token: call.token.map(Into::into),
        steps,
        done: 0,
        interval: Duration::from_millis(interval_ms),
    };
    if let Err(error) = slow.start(started, call.now, out) {
        answer::error(out, Some(call.id), code::INTERNAL, &error.to_string());
    }
    Ok(())
}

fn big(call: &Call<'_>, out: &mut Vec<u8>) -> Result<(), String> {
    let count = integer(call.arguments.bytes, "bytes", 0, BIG_BYTES_MAX as u64, None)?;
    // At most BIG_BYTES_MAX, which is a usize.
    answer::tool_text_of_size(out, call.id, count as usize);
    Ok(())
}

fn touch(call: &Call<'_>, resources: &mut Resources, out: &mut Vec<u8>) -> Result<(), String> {
    let uri = call.arguments.uri.text();
    let uri = uri.ok_or("The argument uri must be a string.")?;
    if uri.len() > URI_BYTES_MAX {
        return Err(format!(
            "The argument uri is longer than {URI_BYTES_MAX} bytes."
        ));
    }
    let said = if resources.touch(&uri) {
        answer::resource_updated(out, &uri);
        "its subscribers were told"
    } else {
        "nobody has subscribed to it"
    };
    answer::tool_text(out, call.id, &format!("touched {uri}: {said}"));
    Ok(())
}

/// An integer argument in `min..=max`, or `default` if it is absent.
fn integer(
    raw: Raw<'_>,
    name: &str,
    min: u64,
    max: u64,
    default: Option<u64>,
) -> Result<u64, String> {
    let value = match raw.0 {
        Some(text) => text.parse().ok(),
        None => default,
    };
    value
        .filter(|value| (min..=max).contains(value))
        .ok_or_else(|| format!("The argument {name} must be an integer from {min} to {max}."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_integers_are_exact_and_others_are_doubles() {
        let cases = [
            ("9007199254740993", "1", "9007199254740994"),
            (
                "18446744073709551615",
                "18446744073709551615",
                "36893488147419103230",
            ),
            ("-1", "1", "0"),
            ("0.5", "1", "1.5"),
            ("1e3", "1", "1001"),
        ];
        for (a, b, expected) in cases {
            assert_eq!(sum(a, b).as_deref(), Some(expected));
        }
        assert_eq!(sum("1e999", "1"), None);
        assert_eq!(
            sum(&i128::MAX.to_string(), "1").as_deref(),
            Some("170141183460469230000000000000000000000")
        );
    }

    #[test]
    fn schemas_say_the_bounds_that_are_checked() {
        let list: serde_json::Value =
            serde_json::from_str(&Tools::default().list()).expect("valid JSON");
        let property = |tool: usize, name: &str, key: &str| {
            list["tools"][tool]["inputSchema"]["properties"][name][key].as_u64()
        };
        assert_eq!(property(2, "steps", "maximum"), Some(SLOW_STEPS_MAX));
        assert_eq!(property(2, "steps", "default"), Some(STEPS_DEFAULT));
        assert_eq!(
            property(2, "interval_ms", "maximum"),
            Some(SLOW_INTERVAL_MS_MAX)
        );
        assert_eq!(
            property(2, "interval_ms", "default"),
            Some(INTERVAL_MS_DEFAULT)
        );
        assert_eq!(property(3, "bytes", "maximum"), Some(BIG_BYTES_MAX as u64));
    }
}
