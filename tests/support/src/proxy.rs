//! A TCP proxy between a store and its server that imitates faulty networks.

use std::{io, net::SocketAddr, sync::atomic::Ordering::Relaxed};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, watch},
    time::sleep_until,
};

use super::prelude::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    Clear,
    /// Nothing arrives until this ends. Then everything arrives, since TCP sends lost bytes again.
    Cut,
    /// Nothing ever arrives: a connection that was used in this weather stays silent and open.
    HalfOpen,
    Reset,
    /// The server receives each request. One of eleven chunks of its replies is lost, and ends the connection.
    NoReply,
}

/// An odd number: if replies to reads and writes alternate, both are affected.
const NO_REPLY: u64 = 11;

#[derive(Clone, Copy, Debug)]
struct Wire {
    to: SocketAddr,
    weather: Weather,
    /// The permanent delay of each reply, and the additional delay now.
    latency: Duration,
    delay: Duration,
    /// Increases to end all connections.
    era: u64,
    /// Increases so that all connections stay silent and open.
    silence: u64,
}

/// Runs as long as the runtime of the caller.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    dials: Arc<AtomicU64>,
    wire: watch::Sender<Wire>,
}

impl Proxy {
    pub async fn new(to: SocketAddr, latency: Duration) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (wire, seen) = watch::channel(Wire {
            to,
            weather: Weather::Clear,
            latency,
            delay: Duration::ZERO,
            era: 0,
            silence: 0,
        });
        let dials = Arc::<AtomicU64>::default();
        let dialled = Arc::clone(&dials);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                dialled.fetch_add(1, Relaxed);
                tokio::spawn(carry(client, seen.clone()));
            }
        });
        Self {
            address,
            dials,
            wire,
        }
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    pub fn dials(&self) -> u64 {
        self.dials.load(Relaxed)
    }

    pub fn set_weather(&self, weather: Weather) {
        self.wire.send_modify(|wire| {
            wire.weather = weather;
            wire.era += u64::from(weather == Weather::Reset);
        });
    }

    /// If the new delay is shorter than the time that a reply has been under way, the reply arrives at once.
    pub fn set_delay(&self, delay: Duration) {
        self.wire.send_modify(|wire| wire.delay = delay);
    }

    /// Nothing passes the connections of now any more, which stay open. New ones work.
    pub fn fall_silent(&self) {
        self.wire.send_modify(|wire| wire.silence += 1);
    }

    /// Ends all connections. New ones lead to this server.
    pub fn lead_to(&self, to: SocketAddr) {
        self.wire.send_modify(|wire| {
            wire.to = to;
            wire.era += 1;
        });
    }
}

async fn carry(client: TcpStream, mut wire: watch::Receiver<Wire>) {
    let Wire {
        era,
        silence,
        weather,
        ..
    } = *wire.borrow();
    if weather == Weather::Reset {
        return;
    }
    let mut ended = wire.clone();
    let is_mute = AtomicBool::new(false);
    let mut silent = wire.clone();
    let falls_silent = async {
        let _ = silent.wait_for(|wire| wire.silence != silence).await;
        is_mute.store(true, Relaxed);
        pending().await
    };
    tokio::select! {
        biased;
        () = falls_silent => {}
        _ = ended.wait_for(|wire| wire.era != era) => {}
        _ = async {
            let to = passes(&mut wire, &is_mute).await.to;
            let server = TcpStream::connect(to).await?;
            server.set_nodelay(true)?;
            client.set_nodelay(true)?;
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            tokio::select! {
                result = pump(from_client, to_server, wire.clone(), &is_mute, false) => result,
                result = pump(from_server, to_client, wire.clone(), &is_mute, true) => result,
            }
        } => {}
    }
}

async fn pump(
    from: OwnedReadHalf,
    to: OwnedWriteHalf,
    wire: watch::Receiver<Wire>,
    is_mute: &AtomicBool,
    replies: bool,
) -> io::Result<()> {
    let (queue, queued) = mpsc::channel(1_024);
    let seen = wire.clone();
    let (read, written) = tokio::join!(
        take_up(from, queue, wire, is_mute, replies),
        hand_over(to, queued, seen, replies)
    );
    read.and(written)
}

async fn take_up(
    mut from: OwnedReadHalf,
    queue: mpsc::Sender<(Instant, Vec<u8>)>,
    mut wire: watch::Receiver<Wire>,
    is_mute: &AtomicBool,
    replies: bool,
) -> io::Result<()> {
    static REPLIES: AtomicU64 = AtomicU64::new(0);
    let mut bytes = vec![0; 16 * 1_024];
    loop {
        // The end of a connection is delayed like its bytes.
        let length = from.read(&mut bytes).await.unwrap_or(0);
        let weather = passes(&mut wire, is_mute).await.weather;
        let cut = replies
            && weather == Weather::NoReply
            && REPLIES.fetch_add(1, Relaxed).is_multiple_of(NO_REPLY);
        if length == 0 || cut {
            return Ok(());
        }
        let chunk = (Instant::now(), bytes[..length].to_vec());
        if queue.send(chunk).await.is_err() {
            return Ok(());
        }
    }
}

async fn hand_over(
    mut to: OwnedWriteHalf,
    mut queued: mpsc::Receiver<(Instant, Vec<u8>)>,
    mut wire: watch::Receiver<Wire>,
    replies: bool,
) -> io::Result<()> {
    while let Some((taken_up, bytes)) = queued.recv().await {
        loop {
            let Wire { latency, delay, .. } = *wire.borrow_and_update();
            let delay = latency + delay;
            if !replies || taken_up.elapsed() >= delay {
                break;
            }
            tokio::select! {
                () = sleep_until(taken_up + delay) => {}
                _ = wire.changed() => {}
            }
        }
        to.write_all(&bytes).await?;
    }
    Ok(())
}

/// Waits until bytes can pass, possibly forever.
async fn passes(wire: &mut watch::Receiver<Wire>, is_mute: &AtomicBool) -> Wire {
    let now = wire
        .wait_for(|wire| wire.weather != Weather::Cut)
        .await
        .map_or_else(|_| None, |wire| Some(*wire));
    let Some(now) = now else {
        return pending().await;
    };
    if now.weather == Weather::HalfOpen {
        is_mute.store(true, Relaxed);
    }
    if is_mute.load(Relaxed) {
        return pending().await;
    }
    now
}
