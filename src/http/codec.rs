//! The one place that names monoio-http: its request-head decoder and its chunked decoder, used as
//! pure codecs on bytes that were linted before. Nothing here reads a socket. Its errors are
//! dropped where they arise and turned into a [`Refusal`]: their `clone()` recurses without end.
#![forbid(unsafe_code)]

use ::http::request::Parts;
use bytes::{Bytes, BytesMut};
use monoio_codec::{Decoded, Decoder};
use monoio_http::h1::codec::decoder::{ChunkedBodyDecoder, RequestHeadDecoder};

use super::guard::Refusal;

/// Decodes one linted head. `fields` is what the guard counted.
///
/// # Errors
/// 400 when the decoder refuses the head, reads another length than the guard did, or finds
/// another number of fields: two readings of one head are what request smuggling is made of.
pub fn decode_head(head: &[u8], fields: usize) -> Result<Parts, Refusal> {
    const DISAGREE: Refusal = Refusal::bad("the request head is ambiguous");
    // A buffer of its own, of exactly this size: header values are slices of it and may outlive
    // the connection's read buffer, which they would otherwise keep alive.
    let mut source = BytesMut::from(head);
    let parts = match RequestHeadDecoder.decode(&mut source) {
        Ok(Decoded::Some(parts)) => parts,
        Ok(_) => return Err(DISAGREE),
        Err(_) => return Err(Refusal::bad("the request target or a header is malformed")),
    };
    if !source.is_empty() || parts.headers.len() != fields {
        return Err(DISAGREE);
    }
    Ok(parts)
}

/// The chunked decoder and the bytes of the chunk that is being collected.
#[derive(Default)]
pub struct ChunkCodec {
    decoder: ChunkedBodyDecoder,
    source: BytesMut,
}

impl ChunkCodec {
    /// Adds linted bytes: a bare size line, data, or the CR LF behind data.
    pub fn push(&mut self, bytes: &[u8]) {
        self.source.extend_from_slice(bytes);
    }

    /// Takes the chunk that was pushed whole. `size` is what its linted size line said; for the
    /// last chunk it is zero, and so is the length of what is returned.
    ///
    /// # Errors
    /// 400 when the decoder reads anything but exactly this chunk.
    pub fn take_chunk(&mut self, size: usize) -> Result<Bytes, Refusal> {
        let chunk = match self.decoder.decode(&mut self.source) {
            Ok(Decoded::Some(chunk)) => chunk.unwrap_or_default(),
            Ok(_) | Err(_) => return Err(Refusal::bad("the chunked body is malformed")),
        };
        if chunk.len() != size || !self.source.is_empty() {
            return Err(Refusal::bad("the chunked body is ambiguous"));
        }
        Ok(chunk)
    }
}

impl std::fmt::Debug for ChunkCodec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChunkCodec")
            .field("collected", &self.source.len())
            .finish_non_exhaustive()
    }
}
