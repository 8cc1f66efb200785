//! Prepares `rediss://`, and explains failed handshakes.

use std::{error::Error, io, sync::Arc};

use redis::{ConnectionAddr, ConnectionInfo, RedisError};
use rustls::{CertificateError, crypto::CryptoProvider};

/// Installs a cryptography provider for the process, because redis-rs panics without one at each TLS connection.
pub(super) fn prepare(server: &ConnectionInfo) {
    let is_tls = matches!(server.addr(), ConnectionAddr::TcpTls { .. });
    if is_tls && CryptoProvider::get_default().is_none() {
        // If another thread was faster, its provider is installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

/// The reason why a handshake failed, if it will fail again until someone changes the setup.
pub(super) fn handshake_problem(error: &RedisError) -> Option<&'static str> {
    use CertificateError::{NotValidForName, NotValidForNameContext};
    let io: &io::Error = error
        .source()?
        .downcast_ref::<Arc<dyn Error + Send + Sync>>()?
        .downcast_ref()?;
    Some(match io.get_ref()?.downcast_ref()? {
        rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }) => {
            "the Redis server's certificate is for another host name"
        }
        rustls::Error::InvalidCertificate(_) => "the Redis server's certificate is not trusted",
        rustls::Error::AlertReceived(_) => {
            "the Redis server rejects the TLS handshake; it may want a client certificate"
        }
        _ => "the Redis server has no TLS version or cipher in common, or no TLS at this port",
    })
}

#[cfg(test)]
mod tests {
    use redis::IntoConnectionInfo;

    use super::*;

    #[test]
    fn there_is_a_provider_of_cryptography_from_the_first_store_on() {
        prepare(&"redis://host".into_connection_info().unwrap());
        assert!(CryptoProvider::get_default().is_none());
        prepare(&"rediss://host".into_connection_info().unwrap());
        assert!(CryptoProvider::get_default().is_some());
    }
}
