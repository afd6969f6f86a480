//! Readers of whole texts, written from the standards and the documented limits: slow,
//! and short enough to be checked by eye. The targets compare with them, and so do the
//! property tests beside the code, which is why they know none of its types.

pub mod events;
pub mod response;
