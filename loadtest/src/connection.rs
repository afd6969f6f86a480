//! One HTTP/1.1 connection: a request goes out, its response comes in, message by message.

use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::Instant;

use monoio::io::{AsyncReadRent, AsyncWriteRentExt};
use monoio::net::TcpStream;

use crate::options::Endpoint;
use crate::pace::{Deadline, Deadlines, shut_down};
use crate::record::Failure;
use crate::response::{self, Body, Head, Media};
use crate::sse::{EVENT_BYTES_MAX, Events};

/// Bytes asked for at once. It grows to `READ_BYTES_MAX` while reads fill it.
const READ_BYTES: usize = 4 * 1024;
const READ_BYTES_MAX: usize = 256 * 1024;

/// What came of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Response {
    pub status: u16,
    pub media: Media,
    pub session: Option<String>,
    /// Bytes of the body.
    pub bytes: u64,
}

pub struct Connection {
    stream: TcpStream,
    /// Handed to the kernel for each read.
    chunk: Vec<u8>,
    /// Received and not yet used.
    pending: Vec<u8>,
    body: Vec<u8>,
    deadline: Rc<Deadline>,
    is_usable: bool,
}

impl Connection {
    /// # Errors
    /// When the endpoint does not take it.
    pub async fn open(endpoint: &Endpoint, deadlines: &Deadlines) -> Result<Connection, Failure> {
        let refused = |error: std::io::Error| Failure::Connect(error.kind().to_string());
        let stream = TcpStream::connect_addr(endpoint.address)
            .await
            .map_err(refused)?;
        let _ = stream.set_nodelay(true);
        let deadline = deadlines.add(stream.as_raw_fd());
        Ok(Connection {
            stream,
            chunk: Vec::new(),
            pending: Vec::new(),
            body: Vec::new(),
            deadline,
            is_usable: true,
        })
    }

    /// False when it cannot carry another request.
    pub fn is_usable(&self) -> bool {
        self.is_usable
    }

    /// The end of waiting for what comes now; `None`: no end.
    pub fn set_deadline(&self, at: Option<Instant>) {
        self.deadline.set(at);
    }

    /// Ends the connection without a word, while a response may be on its way.
    pub fn vanish(&mut self) {
        self.is_usable = false;
        shut_down(self.stream.as_raw_fd());
    }

    /// The socket, to be shut down by who reads it not.
    pub fn raw_fd(&self) -> std::os::fd::RawFd {
        self.stream.as_raw_fd()
    }

    /// Sends a request. The buffer comes back empty.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn send(&mut self, request: Vec<u8>) -> (Result<(), Failure>, Vec<u8>) {
        let (sent, mut buffer) = self.stream.write_all(request).await;
        buffer.clear();
        (sent.map(drop).map_err(|_| self.closed()), buffer)
    }

    /// Reads a response whole, and calls `on` with each message in it: the JSON body, or each event's data.
    ///
    /// # Errors
    /// When it does not come whole.
    pub async fn receive(&mut self, mut on: impl FnMut(&[u8])) -> Result<Response, Failure> {
        let head = self.head().await?;
        let mut response = Response {
            status: head.status,
            media: head.media,
            session: head.session.clone(),
            bytes: 0,
        };
        let mut reader = Body::new(head.framing);
        let mut events = (head.media == Media::EventStream).then(Events::default);
        let mut body = std::mem::take(&mut self.body);
        body.clear();
        loop {
            let from = body.len();
            let fed = reader
                .feed(&self.pending, &mut body)
                .map_err(|why| self.broken(why.0));
            let used = fed?;
            self.pending.drain(..used);
            response.bytes += (body.len() - from) as u64;
            if let Some(events) = &mut events {
                events.feed(&body, &mut on);
                body.clear();
                if events.waiting() > EVENT_BYTES_MAX {
                    return Err(self.broken("an event without end"));
                }
            } else if body.len() > EVENT_BYTES_MAX {
                return Err(self.broken("a body without end"));
            }
            if reader.is_done() {
                break;
            }
            if self.fill().await? == 0 {
                if reader.may_end() {
                    break;
                }
                return Err(self.closed());
            }
        }
        if head.media == Media::Json && !body.is_empty() {
            on(body.trim_ascii());
        }
        if body.capacity() <= READ_BYTES_MAX {
            self.body = body;
        }
        self.is_usable = head.keeps_alive;
        Ok(response)
    }

    /// Reads a response's head; what follows is read by `more`.
    ///
    /// # Errors
    /// When none comes.
    pub async fn head(&mut self) -> Result<Head, Failure> {
        loop {
            if !self.pending.is_empty() {
                let read = response::head(&self.pending).map_err(|why| self.broken(why.0))?;
                if let Some((head, length)) = read {
                    self.pending.drain(..length);
                    // Interim responses are not for us.
                    if !(100..200).contains(&head.status) {
                        return Ok(head);
                    }
                    continue;
                }
            }
            if self.fill().await? == 0 {
                return Err(self.closed());
            }
        }
    }

    /// Reads on in the body of a stream that goes on, once. False: it has ended.
    ///
    /// # Errors
    /// When it ends where it must not.
    pub async fn more(&mut self, reader: &mut Body, out: &mut Vec<u8>) -> Result<bool, Failure> {
        loop {
            let used = reader
                .feed(&self.pending, out)
                .map_err(|why| self.broken(why.0))?;
            self.pending.drain(..used);
            if reader.is_done() {
                return Ok(false);
            }
            if !out.is_empty() {
                return Ok(true);
            }
            if self.fill().await? == 0 {
                return if reader.may_end() {
                    Ok(false)
                } else {
                    Err(self.closed())
                };
            }
        }
    }

    async fn fill(&mut self) -> Result<usize, Failure> {
        let mut chunk = std::mem::take(&mut self.chunk);
        if chunk.capacity() == 0 {
            chunk.reserve_exact(READ_BYTES);
        }
        chunk.clear();
        let (read, mut chunk) = self.stream.read(chunk).await;
        let count = match read {
            Ok(count) => count,
            Err(_) => return Err(self.closed()),
        };
        if count == chunk.capacity() && count < READ_BYTES_MAX {
            self.pending.extend_from_slice(&chunk);
            chunk = Vec::with_capacity(count * 2);
        } else if self.pending.is_empty() {
            // The usual case: all that waits is what just came.
            std::mem::swap(&mut self.pending, &mut chunk);
        } else {
            self.pending.extend_from_slice(&chunk);
        }
        self.chunk = chunk;
        Ok(count)
    }

    fn closed(&mut self) -> Failure {
        self.is_usable = false;
        if self.deadline.has_passed() {
            Failure::TimedOut
        } else {
            Failure::Closed
        }
    }

    fn broken(&mut self, why: &'static str) -> Failure {
        self.is_usable = false;
        Failure::NotHttp(why)
    }
}
