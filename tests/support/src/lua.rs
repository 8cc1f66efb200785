//! A server in this process: runs the script in Lua 5.4, and keeps the keys.
//!
//! Redis and Valkey run Lua 5.1. Other servers with their protocol run 5.4, where integers and floats differ.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    io::Write,
    ops::Range,
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::history::Spoiled;
use mlua::{Function, Lua, Table, Value as LuaValue, Variadic};
use redis::{ErrorKind, Parser, RedisResult, ServerErrorKind, Value};
use sluicegate::{Key, RedisServer, RedisStore};
use tempfile::TempDir;

/// The script adds this to every TTL if the clock is not the server's.
const SLACK_MS: u64 = 86_400_000;

/// A bit in the version of a call.
const TIME_FOLLOWS: u8 = 128;

/// The error of the fast path alone, where it would hand an operation over to the plain script.
pub const HANDED_OVER: &str = "it was handed over";

type State = Arc<Mutex<Keys>>;

/// The source of the last script, and the compiled function.
type Compiled = Arc<Mutex<Option<(Vec<u8>, Function)>>>;

/// The keys with their expiry times, by the caller's clock, so that the tests find a TTL that is too short.
#[derive(Default)]
struct Keys {
    /// The arguments of the last `EVAL`, and the reply.
    eval: Vec<Vec<u8>>,
    reply: Option<Vec<u8>>,
    commands: Vec<Vec<Vec<u8>>>,
    now_ms: u64,
    values: HashMap<Vec<u8>, (Vec<u8>, u64)>,
    /// The sorted sets of slots: the score of each member, and when the key is gone.
    sets: HashMap<Vec<u8>, (Set, u64)>,
    /// The keys for which each read reports another type.
    of_wrong_type: HashSet<Vec<u8>>,
    /// The members of the only sorted set.
    index: BTreeSet<Vec<u8>>,
    /// How far the server's clock is ahead of the caller's.
    ahead: Duration,
    /// The writes that are answered with an error, counted from 0.
    refused: Option<(Range<usize>, String)>,
    /// How many writes there were since.
    writes: usize,
}

/// The members of a sorted set by their scores.
type Set = BTreeSet<(u64, Vec<u8>)>;

impl Keys {
    /// The members of a set between two bounds, such as `(7` and `+inf`.
    fn between(&self, key: &[u8], from: &[u8], to: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let members = self.sets.get(key).into_iter().flat_map(|it| &it.0);
        let bound = |text: &[u8]| match text {
            b"-inf" => (0, false),
            b"+inf" => (u64::MAX, false),
            [b'(', number @ ..] => (self::number(number), true),
            number => (self::number(number), false),
        };
        let ((from, after), (to, before)) = (bound(from), bound(to));
        let is_in = |score: u64| {
            (score > from || score == from && !after) && (score < to || score == to && !before)
        };
        members.filter(|it| is_in(it.0)).cloned().collect()
    }

    fn score(&self, key: &[u8], member: &[u8]) -> Option<u64> {
        let all = self.between(key, b"-inf", b"+inf");
        all.into_iter().find(|it| it.1 == member).map(|it| it.0)
    }

    /// Removes members of a set; returns how many there were.
    fn remove(&mut self, key: &[u8], is_gone: impl Fn(&(u64, Vec<u8>)) -> bool) -> usize {
        let Some((set, _)) = self.sets.get_mut(key) else {
            return 0;
        };
        let before = set.len();
        set.retain(|it| !is_gone(it));
        let left = set.len();
        if left == 0 {
            self.sets.remove(key);
        }
        before - left
    }

    /// Keeps a set until its newest member expires, and then also, as a server does that knows nothing of the caller's
    /// clock.
    fn keep(&mut self, key: &[u8], gone_ms: u64) -> i64 {
        if let Some((_, gone)) = self.values.get_mut(key) {
            *gone = gone_ms;
            return 1;
        }
        let (set, gone) = self.sets.get_mut(key).expect("there is a key");
        assert!(set.iter().any(|it| it.0 == gone_ms), "as long as a member");
        *gone = gone_ms;
        1
    }

    /// The error of this command, if it is a write that is refused.
    fn refusal_of(&mut self, command: &[u8]) -> Option<String> {
        const WRITES: [&[u8]; 8] = [
            b"DEL",
            b"PEXPIRE",
            b"PEXPIREAT",
            b"SET",
            b"SETRANGE",
            b"ZADD",
            b"ZREM",
            b"ZREMRANGEBYSCORE",
        ];
        let (which, error) = self.refused.as_ref()?;
        let is_write = WRITES.contains(&command);
        let refusal = (is_write && which.contains(&self.writes)).then(|| error.clone());
        self.writes += usize::from(is_write);
        refusal
    }

    fn get(&self, key: &[u8]) -> Option<&(Vec<u8>, u64)> {
        self.values.get(key).filter(|it| self.is_kept(it))
    }

    /// A server keeps a key up to its time, and in the millisecond of that time.
    const fn is_kept(&self, (_, gone_ms): &(Vec<u8>, u64)) -> bool {
        *gone_ms >= self.now_ms
    }
}

/// Executes `EVAL`, `GET` and `DEL`, and answers `EVALSHA` like a server that does not know the script.
#[derive(Clone)]
pub struct LuaServer {
    lua: Lua,
    keys: State,
    compiled: Compiled,
    /// Texts of each script, and the others in their places.
    changes: Vec<(String, String)>,
}

impl LuaServer {
    pub fn new() -> Self {
        let (lua, keys) = (Lua::new(), State::default());
        let structs = lua.create_table().unwrap();
        let strings: Table = lua.globals().get("string").unwrap();
        for name in ["pack", "unpack"] {
            let function: LuaValue = strings.get(name).unwrap();
            structs.set(name, function).unwrap();
        }
        lua.globals().set("struct", structs).unwrap();
        let redis = lua.create_table().unwrap();
        // A command that fails is a mistake in the script, so this panics.
        for name in ["call", "pcall"] {
            let keys = Arc::clone(&keys);
            let command = move |lua: &Lua, args: Variadic<LuaValue>| call(lua, &keys, &args);
            let command = lua.create_function(command).unwrap();
            redis.set(name, command).unwrap();
        }
        let error_reply = lua.create_function(|lua, text: mlua::String| {
            let reply = lua.create_table()?;
            reply.set("err", text)?;
            Ok(reply)
        });
        redis.set("error_reply", error_reply.unwrap()).unwrap();
        lua.globals().set("redis", redis).unwrap();
        Self {
            lua,
            keys,
            compiled: Arc::default(),
            changes: Vec::new(),
        }
    }

    /// The same server with another text in each script, where a script has this text.
    pub fn changing(mut self, text: &str, other: &str) -> Self {
        self.changes.push((text.into(), other.into()));
        self.compiled = Arc::default();
        self
    }

    /// The same server without the script's fast path, which is slower and answers the same.
    pub fn plain(&self) -> Self {
        self.clone()
            .changing("fast_path = true", "fast_path = false")
    }

    /// The same server with the fast path alone, which is an error where it would hand over.
    pub fn fast(&self) -> Self {
        let error = format!("error('{HANDED_OVER}') or rare('plain')");
        self.clone().changing("plain or rare('plain')", &error)
    }

    /// Compiles a script and forgets it. Panics if it is no Lua.
    pub fn compile(&self, source: &str) {
        self.lua.load(source).into_function().unwrap();
    }

    pub fn source(&self) -> String {
        let compiled = self.compiled.lock().unwrap();
        let (source, _) = compiled.as_ref().expect("a script was sent");
        String::from_utf8(source.clone()).unwrap()
    }

    pub fn clear(&self) {
        *self.keys.lock().unwrap() = Keys::default();
    }

    /// Sets the server's clock ahead of the caller's.
    pub fn set_ahead(&self, ahead: Duration) {
        self.keys.lock().unwrap().ahead = ahead;
    }

    /// Answers these of the coming writes, counted from 0, with this error.
    pub fn refuse_writes(&self, which: Range<usize>, error: &str) {
        let mut keys = self.keys.lock().unwrap();
        keys.refused = Some((which, error.into()));
        keys.writes = 0;
    }

    pub fn repeat_as_version(&self, version: u8) -> RedisResult<Value> {
        let mut args = self.keys.lock().unwrap().eval.clone();
        let keys = usize::try_from(number(&args[1])).unwrap();
        let first = &mut args[2 + keys][0];
        *first = *first & TIME_FOLLOWS | version;
        self.eval(&args.iter().map(Vec::as_slice).collect::<Vec<_>>())
    }

    /// The arguments of the last call: one for each key, then the time if the call had one.
    pub fn last_call(&self) -> Vec<Vec<u8>> {
        let args = &self.keys.lock().unwrap().eval;
        let keys = usize::try_from(number(&args[1])).unwrap();
        args[2 + keys..].to_vec()
    }

    pub fn last_reply(&self) -> Option<Vec<u8>> {
        self.keys.lock().unwrap().reply.clone()
    }

    /// The commands of the last call, with `KEYS[i]` for its keys and the size of each text of bytes.
    pub fn last_commands(&self) -> Vec<String> {
        let keys = self.keys.lock().unwrap();
        let name_of = |arg: &Vec<u8>| match keys.eval[2..].iter().position(|key| key == arg) {
            Some(place) => format!("KEYS[{}]", place + 1),
            None if arg.iter().all(u8::is_ascii_alphanumeric) => {
                String::from_utf8(arg.clone()).unwrap()
            }
            None => format!("({} bytes)", arg.len()),
        };
        let words = |command: &Vec<Vec<u8>>| command.iter().map(name_of).collect::<Vec<_>>();
        keys.commands.iter().map(|it| words(it).join(" ")).collect()
    }

    /// Replaces the value of a key; `None` makes its value one of another type.
    pub fn put(&self, key: &str, value: Option<&[u8]>) {
        let mut keys = self.keys.lock().unwrap();
        match value {
            Some(value) => {
                keys.of_wrong_type.remove(key.as_bytes());
                keys.values.insert(key.into(), (value.into(), u64::MAX));
            }
            None => {
                keys.of_wrong_type.insert(key.into());
            }
        }
    }

    pub fn remove(&self, key: &str) {
        self.keys.lock().unwrap().values.remove(key.as_bytes());
    }

    pub fn value(&self, key: &str) -> Option<Vec<u8>> {
        let keys = self.keys.lock().unwrap();
        let value = keys.values.get(key.as_bytes());
        value.map(|(value, _)| value.clone())
    }

    /// Replaces the counts by a value that the script cannot use.
    pub fn spoil(&self, policy: &str, key: &Key, spoiled: Spoiled) {
        let value = String::from_utf8_lossy(key.value());
        let name = format!("sluicegate:{{{}={value}}}:{policy}~1", key.kind());
        let spoiled: Option<&[u8]> = match spoiled {
            Spoiled::WrongType => None,
            Spoiled::Unreadable => Some(b"of another version\x02"),
            Spoiled::Garbage => Some(b"\x03 is not so long\x01"),
        };
        self.put(&name, spoiled);
    }

    /// All keys by their names, with their values and the times at which they are gone. The value of a set is the score
    /// and the bytes of each member that has not expired.
    pub fn all(&self) -> Vec<(String, Vec<u8>, u64)> {
        let keys = self.keys.lock().unwrap();
        let kept = keys.values.iter().filter(|(_, it)| keys.is_kept(it));
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        let all = kept.map(|(name, (value, gone))| (text(name), value.clone(), *gone));
        let sets = keys.sets.iter().map(|(name, (_, gone))| {
            let after = format!("({}", keys.now_ms);
            let members = keys.between(name, after.as_bytes(), b"+inf");
            let bytes = |it: &(u64, Vec<u8>)| [&it.0.to_be_bytes(), &it.1[..]].concat();
            let members = members.iter().flat_map(bytes);
            (text(name), members.collect::<Vec<u8>>(), *gone)
        });
        let sets = sets.filter(|(_, members, _)| !members.is_empty());
        let mut all: Vec<_> = all.chain(sets).collect();
        all.sort();
        all
    }

    /// The last value of each key that was not deleted, and its expiry.
    pub fn written(&self) -> HashMap<Vec<u8>, (Vec<u8>, u64)> {
        self.keys.lock().unwrap().values.clone()
    }

    /// A store over this server, with one call for each operation.
    pub fn store(&self) -> RedisStore {
        let socket = Socket::of(self.clone());
        let server = RedisServer::parse(&format!("unix://{}", socket.path().display())).unwrap();
        // No address is asked for. The store keeps this with the socket.
        let server = server.map_addresses(move |host, port| {
            let _ = &socket;
            (host, port)
        });
        RedisStore::connect_lazy(server).unwrap().in_flight(0)
    }

    fn answer_all(&self, mut client: &UnixStream) {
        let mut parser = Parser::new();
        while let Ok(Value::Array(args)) = parser.parse_value(client) {
            let args = args.into_iter().map(|arg| match arg {
                Value::BulkString(bytes) => bytes,
                other => panic!("{other:?}"),
            });
            let args: Vec<Vec<u8>> = args.collect();
            let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
            let mut reply = Vec::new();
            write(self.answer(&args), &mut reply);
            if client.write_all(&reply).is_err() {
                return;
            }
        }
    }

    fn answer(&self, args: &[&[u8]]) -> RedisResult<Value> {
        match args[0] {
            b"EVALSHA" => refused(ServerErrorKind::NoScript, "no matching script"),
            // The limiter's reports in the background need sorted sets, which this server does not have.
            b"EVAL" if !self.knows(args[1]) && counts_in_sorted_sets(args[1]) => {
                refused(ServerErrorKind::ResponseError, "unknown command")
            }
            b"EVAL" => self.eval(&args[1..]),
            b"PING" | b"CLIENT" => Ok(Value::Okay),
            b"GET" => {
                let name = str::from_utf8(args[1]).unwrap();
                Ok(self.value(name).map_or(Value::Nil, Value::BulkString))
            }
            b"DEL" => {
                self.keys.lock().unwrap().values.remove(args[1]);
                Ok(Value::Int(1))
            }
            b"ZADD" => {
                self.keys.lock().unwrap().index.insert(args[4].to_vec());
                Ok(Value::Int(1))
            }
            b"ZREM" => {
                self.keys.lock().unwrap().index.remove(args[2]);
                Ok(Value::Int(1))
            }
            b"ZREMRANGEBYSCORE" => Ok(Value::Int(0)),
            b"ZSCAN" => {
                let index = &self.keys.lock().unwrap().index;
                let members = index.iter().flat_map(|it| [it.clone(), b"0".to_vec()]);
                let members = members.map(Value::BulkString).collect();
                let end = Value::BulkString(b"0".to_vec());
                Ok(Value::Array(vec![end, Value::Array(members)]))
            }
            _ => refused(ServerErrorKind::ResponseError, "unknown command"),
        }
    }

    fn eval(&self, args: &[&[u8]]) -> RedisResult<Value> {
        let keys = usize::try_from(number(args[1])).unwrap();
        {
            let mut keys = self.keys.lock().unwrap();
            keys.eval = args.iter().map(|arg| arg.to_vec()).collect();
            keys.commands.clear();
        }
        self.set_clock(&args[2 + keys..]);
        let table = |args: &[&[u8]]| {
            let strings = args.iter().map(|arg| self.lua.create_string(arg).unwrap());
            self.lua.create_sequence_from(strings).unwrap()
        };
        for (name, args) in [("KEYS", &args[2..2 + keys]), ("ARGV", &args[2 + keys..])] {
            self.lua.globals().set(name, table(args)).unwrap();
        }
        let reply = match self.script(args[0]).call(()) {
            Err(error) if error.to_string().contains(HANDED_OVER) => {
                return refused(ServerErrorKind::ResponseError, HANDED_OVER);
            }
            reply => reply.unwrap(),
        };
        match reply {
            LuaValue::String(reply) => {
                let reply = reply.as_bytes().to_vec();
                self.keys.lock().unwrap().reply = Some(reply.clone());
                Ok(Value::BulkString(reply))
            }
            LuaValue::Table(error) => {
                let text: String = error.get("err").unwrap();
                Err((ErrorKind::Extension, "an error reply", text).into())
            }
            other => panic!("not a reply: {other:?}"),
        }
    }

    fn knows(&self, source: &[u8]) -> bool {
        let compiled = self.compiled.lock().unwrap();
        compiled.as_ref().is_some_and(|(last, _)| last == source)
    }

    /// Compiles the script only if the source has changed, since compiling takes longer than running.
    fn script(&self, source: &[u8]) -> Function {
        let mut compiled = self.compiled.lock().unwrap();
        if let Some((_, function)) = compiled.as_ref().filter(|(last, _)| last == source) {
            return function.clone();
        }
        let mut changed = String::from_utf8(source.to_vec()).unwrap();
        for (text, other) in &self.changes {
            assert!(changed.contains(text), "no script has it: {text}");
            changed = changed.replacen(text, other, 1);
        }
        let function = self.lua.load(changed).into_function().unwrap();
        *compiled = Some((source.to_vec(), function.clone()));
        function
    }

    /// If the version at the start of the first argument says so, the last argument is the time: six bytes, the lowest
    /// first.
    fn set_clock(&self, args: &[&[u8]]) {
        let mut keys = self.keys.lock().unwrap();
        keys.now_ms = match args {
            [first, .., time] if first[0] & TIME_FOLLOWS != 0 => {
                let bytes = time.iter().rev();
                bytes.fold(0, |ms, byte| ms << 8 | u64::from(*byte))
            }
            _ => u64::try_from((since_epoch() + keys.ahead).as_millis()).unwrap(),
        };
    }
}

fn refused(kind: ServerErrorKind, why: &'static str) -> RedisResult<Value> {
    Err((ErrorKind::Server(kind), why).into())
}

fn counts_in_sorted_sets(source: &[u8]) -> bool {
    source.windows(7).any(|it| it == b"ZINCRBY")
}

fn number(text: &[u8]) -> u64 {
    std::str::from_utf8(text).unwrap().parse().unwrap()
}

/// The commands that the script may use, with the same arguments as in Redis.
fn call(lua: &Lua, keys: &State, args: &[LuaValue]) -> mlua::Result<LuaValue> {
    let command: Vec<Vec<u8>> = args.iter().map(argument).collect();
    let args: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
    let mut keys = keys.lock().unwrap();
    keys.commands.push(command.clone());
    let status = |name: &str, text: &str| {
        let reply = lua.create_table()?;
        reply.set(name, text)?;
        mlua::Result::Ok(LuaValue::Table(reply))
    };
    if let Some(error) = keys.refusal_of(args[0]) {
        return status("err", &error);
    }
    match args[..] {
        [b"TIME"] => {
            let now = since_epoch() + keys.ahead;
            let parts = [now.as_secs().to_string(), now.subsec_micros().to_string()];
            Ok(LuaValue::Table(lua.create_sequence_from(parts)?))
        }
        [b"GET" | b"GETRANGE" | b"ZCOUNT", key, ..] if keys.of_wrong_type.contains(key) => {
            status("err", "WRONGTYPE Operation against a key")
        }
        [b"GET", key] => Ok(match keys.get(key) {
            Some((value, _)) => LuaValue::String(lua.create_string(value)?),
            None => LuaValue::Boolean(false),
        }),
        [b"GETRANGE", key, b"0", last] => {
            let value = keys.get(key).map_or(&[][..], |(value, _)| value);
            let part = value.len().min(1 + usize::try_from(number(last)).unwrap());
            Ok(LuaValue::String(lua.create_string(&value[..part])?))
        }
        [b"GETRANGE", key, b"-200", b"-1"] => {
            let value = keys.get(key).map_or(&[][..], |(value, _)| value);
            let part = &value[value.len().saturating_sub(200)..];
            Ok(LuaValue::String(lua.create_string(part)?))
        }
        [b"EXISTS", ref names @ ..] => {
            let is_there =
                |key: &&&[u8]| keys.of_wrong_type.contains(**key) || keys.get(key).is_some();
            let count = names.iter().filter(is_there).count();
            Ok(LuaValue::Integer(i64::try_from(count).unwrap()))
        }
        [b"SET", key, value, ref until @ ..] => {
            let gone = match *until {
                [b"PX", ttl] => keys.now_ms + number(ttl) - SLACK_MS,
                [b"PXAT", gone] => number(gone),
                [b"KEEPTTL"] => keys.get(key).expect("there is no TTL to keep").1,
                _ => panic!("SET until {until:?}"),
            };
            assert!(gone > keys.now_ms || matches!(*until, [b"KEEPTTL"]));
            keys.values.insert(key.into(), (value.into(), gone));
            status("ok", "OK")
        }
        [b"SETRANGE", key, at, part] => {
            let (value, _) = keys.values.get_mut(key).expect("there is a value");
            let at = usize::try_from(number(at)).unwrap();
            value[at..at + part.len()].copy_from_slice(part);
            Ok(LuaValue::Integer(1))
        }
        [b"DEL", key] => {
            keys.values.remove(key);
            keys.sets.remove(key);
            keys.of_wrong_type.remove(key);
            Ok(LuaValue::Integer(1))
        }
        _ => call_set(lua, &mut keys, &args),
    }
}

/// The commands about sorted sets.
fn call_set(lua: &Lua, keys: &mut Keys, args: &[&[u8]]) -> mlua::Result<LuaValue> {
    let text = |score: Option<u64>| match score {
        Some(score) => Ok(LuaValue::String(lua.create_string(score.to_string())?)),
        None => mlua::Result::Ok(LuaValue::Boolean(false)),
    };
    let count = |count: usize| Ok(LuaValue::Integer(i64::try_from(count).unwrap()));
    let table = |members: Vec<(u64, Vec<u8>)>, with_scores| {
        let all = lua.create_table()?;
        for (score, member) in members {
            all.push(lua.create_string(member)?)?;
            if with_scores {
                all.push(score.to_string())?;
            }
        }
        Ok(LuaValue::Table(all))
    };
    match *args {
        [b"ZCOUNT", key, from, to] => count(keys.between(key, from, to).len()),
        [b"ZMSCORE", key, ref members @ ..] => {
            let scores = members.iter().map(|it| text(keys.score(key, it)));
            let scores: Vec<_> = scores.collect::<mlua::Result<_>>()?;
            Ok(LuaValue::Table(lua.create_sequence_from(scores)?))
        }
        [b"ZRANGEBYSCORE", key, from, to] => table(keys.between(key, from, to), false),
        [
            command,
            key,
            one,
            other,
            b"WITHSCORES",
            b"LIMIT",
            place,
            b"1",
        ] => {
            let members = match command {
                b"ZRANGEBYSCORE" => keys.between(key, one, other),
                _ => keys.between(key, other, one).into_iter().rev().collect(),
            };
            let place = usize::try_from(number(place)).unwrap();
            table(members.into_iter().skip(place).take(1).collect(), true)
        }
        [b"ZADD", key, ref pairs @ ..] => {
            for pair in pairs.chunks(2) {
                keys.remove(key, |it| it.1 == pair[1]);
                let set = keys.sets.entry(key.into()).or_default();
                set.0.insert((number(pair[0]), pair[1].into()));
                set.1 = u64::MAX;
            }
            count(pairs.len() / 2)
        }
        [b"ZREM", key, ref members @ ..] => {
            count(keys.remove(key, |it| members.contains(&&it.1[..])))
        }
        [b"ZREMRANGEBYSCORE", key, b"-inf", to] => {
            let to = number(to);
            count(keys.remove(key, |it| it.0 <= to))
        }
        [b"PEXPIRE", key, ms] => {
            let gone = keys.now_ms + number(ms) - SLACK_MS;
            Ok(LuaValue::Integer(keys.keep(key, gone)))
        }
        [b"PEXPIREAT", key, gone] => Ok(LuaValue::Integer(keys.keep(key, number(gone)))),
        _ => panic!("not a command of the script: {args:?}"),
    }
}

fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// A float that is not a whole number is an error for every command that the script uses.
fn argument(value: &LuaValue) -> Vec<u8> {
    match value {
        LuaValue::String(string) => string.as_bytes().to_vec(),
        LuaValue::Integer(number) => number.to_string().into_bytes(),
        LuaValue::Number(number) => {
            assert!(number.fract() == 0.0 && number.abs() < 9e15, "{number}");
            format!("{number:.0}").into_bytes()
        }
        other => panic!("not an argument: {other:?}"),
    }
}

/// A socket at which a server answers, until this is dropped with the last store that uses it.
struct Socket {
    folder: TempDir,
    has_ended: Arc<AtomicBool>,
}

impl Socket {
    fn of(server: LuaServer) -> Self {
        let socket = Self {
            folder: TempDir::new().unwrap(),
            has_ended: Arc::default(),
        };
        let listener = UnixListener::bind(socket.path()).unwrap();
        let has_ended = Arc::clone(&socket.has_ended);
        thread::spawn(move || {
            for client in listener.incoming() {
                if has_ended.load(SeqCst) {
                    return;
                }
                let (server, client) = (server.clone(), client.unwrap());
                thread::spawn(move || server.answer_all(&client));
            }
        });
        socket
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("lua.sock")
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.has_ended.store(true, SeqCst);
        let _ = UnixStream::connect(self.path()); // wakes the thread
    }
}

/// Writes a reply in the form of the protocol.
fn write(reply: RedisResult<Value>, bytes: &mut Vec<u8>) {
    match reply {
        Ok(Value::Okay) => bytes.extend(b"+OK\r\n"),
        Ok(Value::Nil) => bytes.extend(b"$-1\r\n"),
        Ok(Value::Int(number)) => bytes.extend(format!(":{number}\r\n").bytes()),
        Ok(Value::BulkString(text)) => {
            bytes.extend(format!("${}\r\n", text.len()).bytes());
            bytes.extend(text);
            bytes.extend(b"\r\n");
        }
        Ok(Value::Array(values)) => {
            bytes.extend(format!("*{}\r\n", values.len()).bytes());
            values.into_iter().for_each(|it| write(Ok(it), bytes));
        }
        Ok(other) => panic!("{other:?}"),
        Err(error) => {
            let (code, detail) = (error.code().unwrap_or("ERR"), error.detail());
            let text = match error.kind() {
                ErrorKind::Extension => detail.unwrap_or_default().to_owned(),
                _ => format!("{code} {}", detail.unwrap_or_default()),
            };
            bytes.extend(format!("-{}\r\n", text.replace(['\r', '\n'], " ")).bytes());
        }
    }
}
