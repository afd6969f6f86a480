//! The id under which a call is known upstream. One integer below 2^53 says
//! which shard, which slot and which generation of it; the same integer is the
//! upstream progress token. Whatever comes back says where it belongs without
//! a look-up in any shared map.

/// Bits 0-7 shard + 1 (0 is the hub), 8-27 slot, 28-52 generation from 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct UpstreamId(u64);

const SHARD_BITS: u32 = 8;
const SLOT_BITS: u32 = 20;
const GENERATION_BITS: u32 = 25;
const SLOT_SHIFT: u32 = SHARD_BITS;
const GENERATION_SHIFT: u32 = SHARD_BITS + SLOT_BITS;

/// The last generation of a slot; the next one is 1 again.
pub const GENERATION_MAX: u32 = (1 << GENERATION_BITS) - 1;

/// The first slot of calls that ask for a task: the hub tells them by it.
pub const TASK_SLOTS_FROM: u32 = 1 << (SLOT_BITS - 1);

/// Bytes of the longest id in decimal: 2^53 - 1 has sixteen digits.
pub const DIGITS_MAX: usize = 16;

/// Whose request an id names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// One of the hub's own requests.
    Hub,
    /// A call of this shard, counted from 0.
    Shard(usize),
}

/// An id as the server wrote it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Named {
    pub id: UpstreamId,
    /// It came as a decimal string: accepted, and counted.
    pub quoted: bool,
}

impl UpstreamId {
    /// The id of generation `generation` (1 to [`GENERATION_MAX`]) of a slot of
    /// shard `shard` (0 to 254).
    pub fn of_call(shard: usize, slot: u32, generation: u32) -> UpstreamId {
        debug_assert!(shard < 255 && slot < 1 << SLOT_BITS);
        debug_assert!((1..=GENERATION_MAX).contains(&generation));
        UpstreamId(
            (shard as u64 + 1)
                | u64::from(slot) << SLOT_SHIFT
                | u64::from(generation) << GENERATION_SHIFT,
        )
    }

    /// Whether it is the id of a call that asks for a task.
    pub fn asks_for_task(self) -> bool {
        self.slot() >= TASK_SLOTS_FROM
    }

    /// The id of the hub's request number `sequence` (from 0).
    pub fn of_hub(sequence: u32) -> UpstreamId {
        let generation = u64::from(sequence % GENERATION_MAX) + 1;
        UpstreamId(generation << GENERATION_SHIFT)
    }

    pub fn owner(self) -> Owner {
        match self.0 & ((1 << SHARD_BITS) - 1) {
            0 => Owner::Hub,
            shard => Owner::Shard(shard as usize - 1),
        }
    }

    pub fn slot(self) -> u32 {
        (self.0 >> SLOT_SHIFT) as u32 & ((1 << SLOT_BITS) - 1)
    }

    pub fn generation(self) -> u32 {
        (self.0 >> GENERATION_SHIFT) as u32
    }

    /// The id in decimal, as it stands on the wire.
    pub fn digits(self, buffer: &mut itoa::Buffer) -> &[u8] {
        buffer.format(self.0).as_bytes()
    }

    /// Reads an id from the raw JSON of a server's message: the integer, or its
    /// decimal string. Any other form (1.0, 1e3, "01", " 1") names nobody.
    pub fn read(raw: &[u8]) -> Option<Named> {
        let (digits, quoted) = match raw {
            [b'"', inner @ .., b'"'] => (inner, true),
            _ => (raw, false),
        };
        if digits.is_empty() || digits.len() > DIGITS_MAX || digits[0] == b'0' {
            return None;
        }
        let mut value = 0u64;
        for digit in digits {
            if !digit.is_ascii_digit() {
                return None;
            }
            value = value * 10 + u64::from(digit - b'0');
        }
        let id = UpstreamId(value);
        let valid = value < 1 << 53 && id.generation() >= 1;
        valid.then_some(Named { id, quoted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(id: UpstreamId) -> Option<Named> {
        UpstreamId::read(id.digits(&mut itoa::Buffer::new()))
    }

    #[test]
    fn an_id_says_shard_slot_and_generation() {
        for shard in [0, 1, 254] {
            for slot in [0, 1, (1 << SLOT_BITS) - 1] {
                for generation in [1, 2, GENERATION_MAX] {
                    let id = UpstreamId::of_call(shard, slot, generation);
                    assert!(id.0 < 1 << 53, "JavaScript keeps it exactly");
                    assert_eq!(id.owner(), Owner::Shard(shard));
                    assert_eq!((id.slot(), id.generation()), (slot, generation));
                    assert_eq!(round_trip(id), Some(Named { id, quoted: false }));
                }
            }
        }
    }

    #[test]
    fn the_hubs_ids_are_its_own_and_never_zero() {
        for sequence in [0, 1, u32::MAX] {
            let id = UpstreamId::of_hub(sequence);
            assert_eq!(id.owner(), Owner::Hub);
            assert!(round_trip(id).is_some());
        }
    }

    #[test]
    fn only_the_integer_and_its_decimal_string_name_a_call() {
        let id = UpstreamId::of_call(3, 7, 9);
        let mut buffer = itoa::Buffer::new();
        let text = String::from_utf8(id.digits(&mut buffer).to_vec()).unwrap();
        let quoted = format!("\"{text}\"");
        assert_eq!(
            UpstreamId::read(quoted.as_bytes()),
            Some(Named { id, quoted: true })
        );
        for bad in [
            format!("{text}.0"),
            format!("{text}e0"),
            format!("0{text}"),
            format!("-{text}"),
            format!("\" {text}\""),
            format!("+{text}"),
            "0".into(),
            "257".into(),
            "\"\"".into(),
            "null".into(),
            "9007199254740992".into(),
            "99999999999999999999".into(),
            "\"".into(),
        ] {
            assert_eq!(UpstreamId::read(bad.as_bytes()), None, "{bad}");
        }
    }
}
