//! An axum server on a free port, and a client of it.

use std::net::SocketAddr;

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, Method, Request, StatusCode},
};
use http_body_util::BodyExt;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::{net::TcpListener, task::JoinHandle};

/// A running server, aborted when dropped.
pub struct Site {
    address: SocketAddr,
    client: Client<HttpConnector, Body>,
    server: JoinHandle<std::io::Result<()>>,
}

impl Site {
    pub async fn start(app: Router) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = app.into_make_service_with_connect_info::<SocketAddr>();
        Self {
            address,
            client: Client::builder(TokioExecutor::new()).build_http(),
            server: tokio::spawn(async { axum::serve(listener, service).await }),
        }
    }

    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> (StatusCode, HeaderMap, String) {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body.to_owned())).unwrap();
        let (head, body) = self.client.request(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes().to_vec();
        (head.status, head.headers, String::from_utf8(body).unwrap())
    }

    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
    ) -> (StatusCode, HeaderMap, String) {
        self.send(method, path, headers, "").await
    }

    pub async fn get(
        &self,
        path: &str,
        headers: &[(&str, &str)],
    ) -> (StatusCode, HeaderMap, String) {
        self.ask(Method::GET, path, headers).await
    }

    pub async fn status(&self, path: &str) -> StatusCode {
        self.get(path, &[]).await.0
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.server.abort();
    }
}
