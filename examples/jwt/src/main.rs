//! Limits every request by address, and by the user that its JSON Web Token names.
//!
//!     JWT_SECRET=sesame cargo run -p example-jwt
//!
//! Each user has a limit. Without a token, or with a wrong one, only the limit by address applies:
//!
//!     curl -i localhost:3000                                                                  # 200, hello, nobody
//!     curl -i localhost:3000 -H "authorization: Bearer $(curl -s localhost:3000/token/alice)" # 200, "user";r=1
//!     curl -i localhost:3000 -H "authorization: Bearer $(curl -s localhost:3000/token/alice)" # 200, hello, alice
//!     curl -i localhost:3000 -H "authorization: Bearer $(curl -s localhost:3000/token/alice)" # 429, ["user"]
//!     curl -i localhost:3000 -H "authorization: Bearer $(curl -s localhost:3000/token/bob)"   # 200, "user";r=1
//!     curl -i localhost:3000 -H 'authorization: Bearer made.up.token'                         # 401, Bearer
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add axum jsonwebtoken serde tokio tracing-subscriber -F jsonwebtoken/rust_crypto,serde/derive,tokio/full
//!     cargo add --path ../sluicegate -F axum

use std::{env, error::Error, net::SocketAddr};

use axum::{
    Extension, Router,
    extract::{Path, Request, State},
    http::{HeaderValue, StatusCode, header},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::get,
};
use jsonwebtoken::{DecodingKey, EncodingKey, Validation};
use serde::{Deserialize, Serialize};
use sluicegate::{
    Key, KeyExtractor, Limiter, MemoryStore, PeerIp, Policy, RateLimitLayer, extract,
};
use tokio::net::TcpListener;

#[derive(Clone, Deserialize, Serialize)]
struct Claims {
    sub: String,
    exp: u64,
}

/// Inserts an `Option<Claims>` into each request: `None` without a token. Requests with a wrong token go no further.
async fn authenticate(
    State(key): State<DecodingKey>,
    mut request: Request,
    next: Next,
) -> Response {
    let header = request.headers().get(header::AUTHORIZATION);
    let claims = header.map(|value| claims(value, &key));
    if let Some(None) = claims {
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
        return (StatusCode::UNAUTHORIZED, challenge).into_response();
    }
    request.extensions_mut().insert(claims.flatten());
    next.run(request).await
}

/// Checks the signature and the time at which the token expires.
fn claims(header: &HeaderValue, key: &DecodingKey) -> Option<Claims> {
    let token = header.to_str().ok()?.strip_prefix("Bearer ")?;
    let token = jsonwebtoken::decode(token, key, &Validation::default());
    Some(token.ok()?.claims)
}

/// Stands for the service that signs your tokens, after asking for a password.
async fn token(
    State(key): State<EncodingKey>,
    Path(user): Path<String>,
) -> Result<String, StatusCode> {
    let exp = jsonwebtoken::get_current_timestamp() + 3600;
    let token = jsonwebtoken::encode(&Default::default(), &Claims { sub: user, exp }, &key);
    token.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
}

async fn hello(Extension(claims): Extension<Option<Claims>>) -> String {
    let user = claims.map_or("nobody".to_owned(), |claims| claims.sub);
    format!("hello, {user}\n")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Shows the warnings: that a limit is misconfigured, or that the store does not answer.
    tracing_subscriber::fmt::init();

    let secret = env::var("JWT_SECRET").map_err(|_| "set JWT_SECRET")?;
    let sign = EncodingKey::from_secret(secret.as_bytes());
    let verify = DecodingKey::from_secret(secret.as_bytes());

    let limiter = Limiter::new(MemoryStore::new());
    let user =
        extract::FromExtension::new(|claims: &Claims| Key::new("user", &claims.sub)).or_skip();
    let by_user = RateLimitLayer::new(limiter.clone()).limit(Policy::parse("user", "2/1m")?, user);
    let by_address = RateLimitLayer::new(limiter).limit(Policy::parse("ip", "60/1m")?, PeerIp);

    // The layer that you add last is the first that a request comes to.
    let app = Router::new()
        .route("/", get(hello))
        .layer(by_user)
        .layer(from_fn_with_state(verify, authenticate))
        .route("/token/{user}", get(token).with_state(sign))
        .layer(by_address);

    // The first argument is another address to listen on.
    let address = env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:3000")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}
