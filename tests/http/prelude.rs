//! The names that most tests use.

pub(crate) use crate::asking::*;
pub(crate) use axum::middleware::{Next, from_fn};
pub(crate) use axum::routing::{MethodRouter, any, get, post};
pub(crate) use axum::{Extension, Json, Router, body::Body};
pub(crate) use futures::{FutureExt, StreamExt, stream};
pub(crate) use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
pub(crate) use http::{Request, Response, request::Parts};
pub(crate) use http_body_util::{BodyExt, Empty, Full};
pub(crate) use hyper::body::{Bytes, Incoming};
pub(crate) use hyper_util::rt::{TokioExecutor, TokioIo};
pub(crate) use hyper_util::{client::legacy::Client, service::TowerToHyperService};
pub(crate) use sluicegate::error::{ExtractError, ExtractErrorKind, StoreErrorKind};
pub(crate) use sluicegate::extract::{BearerToken, Cookie, Keys, TrustedProxies};
pub(crate) use sluicegate::manual_clock::ManualClock;
pub(crate) use sluicegate::middleware::{
    ActualCost, CostMeter, Decisions, EXPOSED_HEADERS, Grpc, HeaderStyle, MakeRejection,
    PolicySelector, ProblemJson, RateLimit, Rejection, Route, Routes, StatusOnly, ToBodyEnd,
};
pub(crate) use sluicegate::observe::{Event, MetricsObserver, Observer, TracingObserver};
pub(crate) use sluicegate::policies::{Policies, ReloadablePolicies, Unit};
pub(crate) use sluicegate::store::{Check, Operation, StoreFuture};
pub(crate) use sluicegate::{
    Charge, Decision, FailurePolicy, ForwardedIp, Header, Key, KeyExtractor, Limiter, MemoryStore,
    PeerIp, Policy, RateLimitLayer, Rule, Store, StoreError,
};
pub(crate) use std::future::{pending, ready};
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
pub(crate) use std::sync::{Arc, Mutex, atomic::Ordering::SeqCst};
pub(crate) use std::task::{Context, Poll};
pub(crate) use std::{convert::Infallible, net::SocketAddr, pin::Pin, time::Duration};
pub(crate) use support::scripted::{Scripted, allowed, denied, unavailable};
pub(crate) use support::{log::Log, site::Site, trace::traced};
pub(crate) use tokio::io::{AsyncReadExt, AsyncWriteExt};
pub(crate) use tokio::net::{TcpListener, TcpStream};
pub(crate) use tokio::sync::mpsc;
pub(crate) use tokio::time::{Instant, sleep};
pub(crate) use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
