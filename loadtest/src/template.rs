//! Arguments of a tool as the user writes them, with places for what differs from call to call.

use crate::nonce::{NONCE_BYTES, Nonce};

/// A place in a template.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Part {
    Text(String),
    /// `{nonce}`: the call's nonce.
    Nonce,
    /// `{padding}`: so many letters that nonce and padding have the payload's size.
    Padding,
    /// `{count}`: the number of the call in its session.
    Number,
}

/// Arguments with places.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Template {
    parts: Vec<Part>,
    padding: String,
}

/// Why arguments cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the arguments are no JSON object once their places are filled: {0}")]
pub struct NotArguments(String);

impl Template {
    /// Reads a template; `payload` is the size of nonce and padding together, in bytes.
    ///
    /// # Errors
    /// When what comes of it is no JSON object.
    pub fn new(text: &str, payload: usize) -> Result<Template, NotArguments> {
        let mut parts = Vec::new();
        let mut rest = text;
        const PLACES: [(&str, Part); 3] = [
            ("{nonce}", Part::Nonce),
            ("{padding}", Part::Padding),
            ("{count}", Part::Number),
        ];
        loop {
            let next = PLACES
                .iter()
                .filter_map(|(place, part)| Some((rest.find(place)?, place, part)));
            let Some((at, place, part)) = next.min_by_key(|(at, ..)| *at) else {
                break;
            };
            parts.push(Part::Text(rest[..at].to_owned()));
            parts.push(part.clone());
            rest = &rest[at + place.len()..];
        }
        parts.push(Part::Text(rest.to_owned()));
        let template = Template {
            parts,
            padding: "x".repeat(payload.saturating_sub(NONCE_BYTES)),
        };
        let mut sample = Vec::new();
        template.fill(
            &mut sample,
            Nonce {
                session: 0,
                call: 0,
            },
        );
        match serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(&sample) {
            Ok(_) => Ok(template),
            Err(error) => Err(NotArguments(error.to_string())),
        }
    }

    /// Appends the arguments of a call.
    pub fn fill(&self, out: &mut Vec<u8>, nonce: Nonce) {
        for part in &self.parts {
            match part {
                Part::Text(text) => out.extend_from_slice(text.as_bytes()),
                Part::Nonce => out.extend_from_slice(nonce.to_string().as_bytes()),
                Part::Padding => out.extend_from_slice(self.padding.as_bytes()),
                Part::Number => {
                    out.extend_from_slice(itoa::Buffer::new().format(nonce.call).as_bytes())
                }
            }
        }
    }

    /// What stands right behind the nonce and is padding.
    pub fn padding(&self) -> &str {
        let mut parts = self.parts.windows(3);
        // Between two places stands a text, which may be empty.
        match parts.any(|three| matches!(three, [Part::Nonce, Part::Text(text), Part::Padding] if text.is_empty())) {
            true => &self.padding,
            false => "",
        }
    }

    /// True when each answer can be told from any other by what it repeats.
    pub fn has_nonce(&self) -> bool {
        self.parts.contains(&Part::Nonce)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_filled() {
        let template = Template::new(
            r#"{"message":"{nonce}{padding}","step":{count}}"#,
            NONCE_BYTES + 3,
        )
        .expect("good");
        let nonce = Nonce {
            session: 1,
            call: 12,
        };
        let mut out = Vec::new();
        template.fill(&mut out, nonce);
        assert_eq!(
            String::from_utf8_lossy(&out),
            format!(r#"{{"message":"{nonce}xxx","step":12}}"#)
        );
        assert!(template.has_nonce());
        assert_eq!(template.padding(), "xxx");
        assert_eq!(
            Template::new(r#"{"a":"{padding}{nonce}"}"#, 99)
                .expect("good")
                .padding(),
            ""
        );
        assert!(!Template::new("{}", 0).expect("an object").has_nonce());
        assert!(Template::new("[{count}]", 0).is_err());
        assert!(Template::new(r#"{"a":{nonce}}"#, 0).is_err());
    }
}
