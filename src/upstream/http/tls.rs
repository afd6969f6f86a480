//! TLS as a codec between the bytes of a connection and those of its socket: rustls does no
//! I/O here.
#![forbid(unsafe_code)]

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, BufRead, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

/// Whose certificates are believed, and for which name.
#[derive(Clone)]
pub struct TlsSettings {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

/// Size of a file of roots at most, bytes. Those of systems have a quarter of a million.
const ROOTS_BYTES_MAX: u64 = 4 << 20;

/// Why there can be no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("the host in the URL of the server cannot stand in a certificate")]
    Name,
    #[error("{0} cannot be read: {1}")]
    File(PathBuf, io::Error),
    #[error("{0} is no regular file")]
    NotRegular(PathBuf),
    #[error("{0} is larger than {ROOTS_BYTES_MAX} bytes")]
    TooLarge(PathBuf),
    /// What is wrong with its text is not told: the text may be a secret.
    #[error("{0} is not in PEM form, as certificates are")]
    Form(PathBuf),
    #[error("{0} has no certificate that can be used as a root")]
    NoneInFile(PathBuf),
    #[error(
        "the system has no root certificates that can be used: install them (the package is often named \
         ca-certificates), or name a file with --upstream-ca"
    )]
    NoneInSystem,
    #[error("TLS cannot be set up: {0}")]
    Config(rustls::Error),
}

impl TlsSettings {
    /// For the server of that name or IP address. `ca`: a file of roots to be used instead of
    /// the system's.
    pub fn new(host: &str, ca: Option<&Path>) -> Result<TlsSettings, TlsError> {
        // A name in a certificate never ends in a dot.
        let host = host.strip_suffix('.').unwrap_or(host).to_owned();
        let name = ServerName::try_from(host).map_err(|_| TlsError::Name)?;
        let roots = match ca {
            Some(file) => roots_of_file(file)?,
            None => roots_of_system()?,
        };
        let provider = Arc::new(ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Config)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsSettings {
            config: Arc::new(config),
            name,
        })
    }
}

impl fmt::Debug for TlsSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSettings")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Whether the roots of a file could be used now.
///
/// # Errors
/// What [`TlsSettings::new`] would say is wrong with it.
pub fn check_file(file: &Path) -> Result<(), TlsError> {
    roots_of_file(file).map(drop)
}

fn roots_of_file(file: &Path) -> Result<RootCertStore, TlsError> {
    let text = read_bounded(file)?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let certificate = certificate.map_err(|_| TlsError::Form(file.to_owned()))?;
        roots
            .add(certificate)
            .map_err(|_| TlsError::NoneInFile(file.to_owned()))?;
    }
    match roots.is_empty() {
        true => Err(TlsError::NoneInFile(file.to_owned())),
        false => Ok(roots),
    }
}

/// Whatever the path leads to, this neither waits nor reads without end.
fn read_bounded(path: &Path) -> Result<Vec<u8>, TlsError> {
    let unreadable = |error| TlsError::File(path.to_owned(), error);
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .map_err(unreadable)?;
    if !file.metadata().map_err(unreadable)?.is_file() {
        return Err(TlsError::NotRegular(path.to_owned()));
    }
    let mut text = Vec::new();
    let read = file.take(ROOTS_BYTES_MAX + 1).read_to_end(&mut text);
    read.map_err(unreadable)?;
    match text.len() as u64 > ROOTS_BYTES_MAX {
        true => Err(TlsError::TooLarge(path.to_owned())),
        false => Ok(text),
    }
}

fn roots_of_system() -> Result<RootCertStore, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::debug!(%error, "some of the system's root certificates cannot be read");
    }
    let mut roots = RootCertStore::empty();
    // Old ones that no longer parse are in every system's store.
    let _ = roots.add_parsable_certificates(found.certs);
    match roots.is_empty() {
        true => Err(TlsError::NoneInSystem),
        false => Ok(roots),
    }
}

/// The TLS of one connection.
pub(super) struct Tls {
    connection: ClientConnection,
    has_ended: bool,
}

impl Tls {
    pub(super) fn new(settings: &TlsSettings) -> Result<Tls, rustls::Error> {
        let connection = ClientConnection::new(settings.config.clone(), settings.name.clone())?;
        Ok(Tls {
            connection,
            has_ended: false,
        })
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// The server has said that it sends nothing more, so that nothing can have been cut off.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Takes what came from the socket, and appends what it says to `plain`. On an error
    /// [`Tls::take_out`] may still have an alert for the server.
    pub(super) fn take_in(&mut self, mut sealed: &[u8], plain: &mut Vec<u8>) -> io::Result<()> {
        while !sealed.is_empty() && !self.has_ended {
            self.connection.read_tls(&mut sealed)?;
            let state = self
                .connection
                .process_new_packets()
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            let mut left = state.plaintext_bytes_to_read();
            plain.reserve(left);
            while left > 0 {
                let mut reader = self.connection.reader();
                let piece = reader.fill_buf()?;
                let length = piece.len();
                if length == 0 {
                    break;
                }
                plain.extend_from_slice(piece);
                reader.consume(length);
                left = left.saturating_sub(length);
            }
            self.has_ended = state.peer_has_closed();
        }
        Ok(())
    }

    /// Seals `plain`, to be had from [`Tls::take_out`].
    pub(super) fn seal(&mut self, plain: &[u8]) -> io::Result<()> {
        self.connection.set_buffer_limit(None);
        self.connection.writer().write_all(plain)
    }

    /// What is to be written to the socket now.
    pub(super) fn take_out(&mut self) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        while self.connection.wants_write() {
            self.connection.write_tls(&mut out)?;
        }
        Ok(out)
    }

    /// The last thing to be written to the socket.
    pub(super) fn close(&mut self) -> io::Result<Vec<u8>> {
        self.connection.send_close_notify();
        self.take_out()
    }
}
