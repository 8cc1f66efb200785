//! The faults, and their repairs.

use std::time::Duration;

use redis::{Connection, cmd};

use super::site::{Site, connect};
use support::{proxy::Weather, sharing::wait};

const SECOND: u64 = 1;
const HOUR: u64 = 3_600;
const DAY: u64 = 86_400;

const TTL: &str = "volatile-ttl";
const LRU: &str = "allkeys-lru";

/// In the order in which two of them can hit one server: faults that need its answers come before faults that silence
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    ScriptsFlushed,
    Ahead { seconds: u64 },
    Back { seconds: u64 },
    OutOfMemory,
    Evicting { policy: &'static str },
    ReadOnly,
    Busy,
    Slow { ms: u64 },
    Wire(Weather),
    Stopped,
    Killed,
    Emptied,
    FailedOver,
    Crowd,
}

/// The setting that a fault changes. Two faults with the same setting are no pair.
#[derive(Debug, PartialEq, Eq)]
enum Knob {
    Scripts,
    Clock(Fault),
    Memory,
    Role,
    Threads,
    Delay,
    Weather,
    Signals,
    Process,
    Callers,
}

/// Repairs a fault. The server works again when this returns.
pub(crate) type Heal = Box<dyn FnOnce(&mut Site)>;

impl Fault {
    pub(crate) const NONE: Self = Self::Wire(Weather::Clear);

    pub(crate) const ALL: [Self; 23] = [
        Self::ScriptsFlushed,
        Self::Ahead { seconds: SECOND },
        Self::Ahead { seconds: HOUR },
        Self::Ahead { seconds: DAY },
        Self::Back { seconds: SECOND },
        Self::Back { seconds: HOUR },
        Self::Back { seconds: DAY },
        Self::OutOfMemory,
        Self::Evicting { policy: TTL },
        Self::Evicting { policy: LRU },
        Self::ReadOnly,
        Self::Busy,
        Self::Slow { ms: 50 },
        Self::Slow { ms: 5_000 },
        Self::Wire(Weather::Cut),
        Self::Wire(Weather::HalfOpen),
        Self::Wire(Weather::Reset),
        Self::Wire(Weather::NoReply),
        Self::Stopped,
        Self::Killed,
        Self::Emptied,
        Self::FailedOver,
        Self::Crowd,
    ];

    pub(crate) fn name(self) -> String {
        match self {
            Self::ScriptsFlushed => "scripts flushed in a loop".into(),
            Self::Ahead { seconds } => format!("clock +{}", span(seconds)),
            Self::Back { seconds } => format!("clock -{}", span(seconds)),
            Self::OutOfMemory => "maxmemory, noeviction".into(),
            Self::Evicting { policy } => format!("maxmemory, {policy}"),
            Self::ReadOnly => "read-only".into(),
            Self::Busy => "busy with a foreign script".into(),
            Self::Slow { ms } => format!("slow ({ms} ms)"),
            Self::Wire(Weather::Clear) => "nothing".into(),
            Self::Wire(Weather::Cut) => "network cut".into(),
            Self::Wire(Weather::HalfOpen) => "half-open".into(),
            Self::Wire(Weather::Reset) => "connections reset".into(),
            Self::Wire(Weather::NoReply) => "cut before replies".into(),
            Self::Stopped => "stopped".into(),
            Self::Killed => "killed".into(),
            Self::Emptied => "restarted empty".into(),
            Self::FailedOver => "failed over".into(),
            Self::Crowd => "10 000 tasks at once".into(),
        }
    }

    /// Whether both can hit one server, in this order.
    pub(crate) fn makes_a_pair_with(self, other: Self) -> bool {
        // A read-only server has no replica to promote.
        self.knob() != other.knob() && (self, other) != (Self::ReadOnly, Self::FailedOver)
    }

    const fn knob(self) -> Knob {
        match self {
            Self::ScriptsFlushed => Knob::Scripts,
            Self::Ahead { .. } | Self::Back { .. } => Knob::Clock(self),
            Self::OutOfMemory | Self::Evicting { .. } => Knob::Memory,
            Self::ReadOnly => Knob::Role,
            Self::Busy => Knob::Threads,
            Self::Slow { .. } => Knob::Delay,
            Self::Wire(_) => Knob::Weather,
            Self::Stopped => Knob::Signals,
            Self::Killed | Self::Emptied | Self::FailedOver => Knob::Process,
            Self::Crowd => Knob::Callers,
        }
    }

    /// Whether the store cannot decide during the fault.
    pub(crate) const fn silences(self) -> bool {
        match self {
            Self::Wire(Weather::Clear) => false,
            Self::OutOfMemory
            | Self::ReadOnly
            | Self::Busy
            | Self::Wire(_)
            | Self::Stopped
            | Self::Killed
            | Self::FailedOver => true,
            Self::Slow { ms } => ms >= 1_000,
            _ => false,
        }
    }

    pub(crate) const fn needs_clock(self) -> bool {
        matches!(self, Self::Ahead { .. } | Self::Back { .. })
    }

    pub(crate) fn inflict(self, site: &mut Site) -> Heal {
        match self {
            Self::ScriptsFlushed => {
                let acts = site.again_and_again(|server| cmd("SCRIPT").arg("FLUSH").exec(server));
                Box::new(|_| drop(acts))
            }
            Self::Ahead { seconds } => jump(site, seconds, true),
            Self::Back { seconds } => jump(site, seconds, false),
            Self::OutOfMemory => {
                site.server.run::<()>("CONFIG SET maxmemory 1");
                Box::new(|site| site.server.run("CONFIG SET maxmemory 0"))
            }
            Self::Evicting { policy } => evict(site, policy),
            Self::ReadOnly => {
                site.server.run::<()>("REPLICAOF 127.0.0.1 1");
                Box::new(|site| site.server.run("REPLICAOF NO ONE"))
            }
            Self::Busy => keep_busy(site),
            Self::Slow { ms } => {
                site.proxy.set_delay(Duration::from_millis(ms));
                Box::new(|site| site.proxy.set_delay(Duration::ZERO))
            }
            Self::Wire(weather) => {
                site.proxy.set_weather(weather);
                Box::new(|site| site.proxy.set_weather(Weather::Clear))
            }
            Self::Stopped => {
                site.server.stop();
                let stopped = site.server.address();
                Box::new(move |site| {
                    if site.server.address() == stopped && !site.is_down {
                        site.server.cont();
                    }
                })
            }
            Self::Killed => {
                site.kill();
                Box::new(Site::restart)
            }
            Self::Emptied => {
                site.kill();
                site.server.wipe();
                site.restart();
                Box::new(|_| ())
            }
            Self::FailedOver => {
                site.kill();
                Box::new(Site::promote)
            }
            Self::Crowd => {
                let traffic = site.traffic.as_ref().unwrap();
                let crowd = traffic.crowd(&site.runtime, 10_000);
                Box::new(|site| {
                    site.runtime.block_on(async {
                        for task in crowd {
                            task.await.unwrap()
                        }
                    })
                })
            }
        }
    }
}

/// The names of several faults.
pub(crate) fn names(faults: &[Fault]) -> String {
    let names: Vec<_> = faults.iter().map(|fault| fault.name()).collect();
    names.join(" + ")
}

fn span(seconds: u64) -> &'static str {
    match seconds {
        SECOND => "1 s",
        HOUR => "1 h",
        _ => "1 d",
    }
}

/// The jump may come at any time, even within a script between its look at the clock and its write.
fn jump(site: &Site, seconds: u64, ahead: bool) -> Heal {
    let clock = site.clock.as_ref().unwrap();
    clock.jump(Duration::from_secs(seconds), ahead);
    Box::new(|_| ())
}

/// Another client fills the server, so that keys are evicted all the time.
fn evict(site: &Site, policy: &str) -> Heal {
    let set = |what: String| site.server.run::<()>(&format!("CONFIG SET {what}"));
    set(format!("maxmemory-policy {policy}"));
    let most = site.server.info("memory", "used_memory") + 500_000;
    set(format!("maxmemory {most}"));
    let others = site.again_and_again(|server| {
        let fill = "for i = 1, 20 do redis.call('SET', 'other:' .. math.random(1000000), string.rep('x', 1000), 'EX', 600) end";
        cmd("EVAL").arg(fill).arg(0).exec(server)
    });
    Box::new(|site| {
        drop(others);
        site.server.run::<()>("CONFIG SET maxmemory 0");
        site.server.run("CONFIG SET maxmemory-policy noeviction")
    })
}

/// A script that does not end.
fn keep_busy(site: &Site) -> Heal {
    let endless = site.server.keep_busy();
    Box::new(move |site| {
        // A server that was restarted or replaced in the meantime is not busy.
        wait("the script is killed", || {
            let kill = |mut server: Connection| cmd("SCRIPT").arg("KILL").exec(&mut server);
            let killed = connect(&site.server.socket_url()).and_then(kill);
            killed.is_err_and(|error| error.code() == Some("NOTBUSY"))
        });
        endless.join().unwrap();
    })
}
