//! A Redis server that accepts only TLS, with certificates for one test.

use std::{fs, net::SocketAddr, path::Path};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use redis::{Client, ClientTlsConfig, TlsCertificates};
use tempfile::TempDir;

use super::{
    redis::{Server, free_port},
    sharing::wait,
};

pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, as PEM.
pub struct Identity {
    cert: String,
    key: String,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        // The name differs from those of the signed certificates, which would otherwise look self-signed.
        params
            .distinguished_name
            .push(DnType::CommonName, "authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    pub fn identity(&self, hosts: &[&str]) -> Identity {
        let hosts: Vec<String> = hosts.iter().map(|&host| host.into()).collect();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(hosts).unwrap();
        Identity {
            cert: params.signed_by(&key, &self.0).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }

    /// The settings of a client that trusts only this authority, and shows this identity.
    pub fn certificates(&self, identity: Option<&Identity>) -> TlsCertificates {
        TlsCertificates {
            client_tls: identity.map(|identity| ClientTlsConfig {
                client_cert: identity.cert.clone().into_bytes(),
                client_key: identity.key.clone().into_bytes(),
            }),
            root_cert: Some(self.0.pem().into_bytes()),
        }
    }
}

/// The server, its port for TLS, and its certificates.
pub struct TlsServer {
    pub server: Server,
    port: u16,
    files: Files,
    _folder: TempDir,
}

struct Files {
    ca: String,
    cert: String,
    key: String,
}

impl TlsServer {
    /// Starts a server with this identity. With `ask_clients`, it asks for client certificates of the authority.
    pub fn start(authority: &Authority, identity: &Identity, ask_clients: bool) -> Self {
        let ask = ["--tls-auth-clients", if ask_clients { "yes" } else { "no" }];
        Self::with(authority, identity, &ask)
    }

    /// Starts two nodes of a cluster that name each other by address, with these identities. Each has half of the slots.
    pub fn cluster(authority: &Authority, identities: [&Identity; 2]) -> [Self; 2] {
        let more: Vec<_> = "--tls-auth-clients no --cluster-enabled yes --tls-cluster yes \
                            --cluster-announce-ip 127.0.0.1"
            .split(' ')
            .collect();
        let nodes = identities.map(|identity| {
            // It ends right after the start if the port between nodes is taken.
            let mut nodes = (0..20).map(|_| Self::with(authority, identity, &more));
            nodes.find(|node| node.server.answers()).unwrap()
        });
        let port = nodes[1].port;
        for (node, first) in nodes.iter().zip([0, 8_192]) {
            let slots: String = (first..first + 8_192)
                .map(|slot| format!(" {slot}"))
                .collect();
            node.server.run::<()>(&format!("CLUSTER ADDSLOTS{slots}"));
        }
        let () = nodes[0]
            .server
            .run(&format!("CLUSTER MEET 127.0.0.1 {port}"));
        wait("both serve their slots", || {
            let knows = |node: &Self| {
                let info: String = node.server.run("CLUSTER INFO");
                info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:2")
            };
            nodes.iter().all(knows)
        });
        nodes
    }

    fn with(authority: &Authority, identity: &Identity, more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, pem: &str| write(folder.path(), name, pem);
        let files = Files {
            ca: file("ca.pem", &authority.0.pem()),
            cert: file("cert.pem", &identity.cert),
            key: file("key.pem", &identity.key),
        };
        let port = free_port();
        let Files { ca, cert, key } = &files;
        let tls = format!(
            "--tls-port {port} --tls-ca-cert-file {ca} --tls-cert-file {cert} --tls-key-file {key}"
        );
        let tls: Vec<_> = tls.split(' ').collect();
        let server = Server::with(&[&tls[..], more].concat());
        Self {
            server,
            port,
            files,
            _folder: folder,
        }
    }

    /// Starts a sentinel of this server with the same certificate. Returns the sentinel and its URL.
    pub fn sentinel(&self) -> (super::sentinel::Sentinel, String) {
        let Files { ca, cert, key } = &self.files;
        let port = free_port();
        let config = format!(
            "tls-port {port}\ntls-ca-cert-file {ca}\ntls-cert-file {cert}\ntls-key-file {key}\n\
             tls-auth-clients no\ntls-replication yes\n"
        );
        let sentinel = super::sentinel::Sentinel::watch(self.address(), &config);
        (sentinel, format!("rediss://127.0.0.1:{port}"))
    }

    pub fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    pub fn url(&self) -> String {
        format!("rediss://{}", self.address())
    }

    pub fn client(&self, certificates: TlsCertificates) -> Client {
        Client::build_with_tls(self.url(), certificates).unwrap()
    }
}

fn write(folder: &Path, name: &str, pem: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, pem).unwrap();
    path.to_str().unwrap().into()
}
