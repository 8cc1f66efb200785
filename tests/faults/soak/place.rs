//! The server, and a user of it with one password at a time.

use std::{fs, thread::sleep};

use sluicegate::{Credentials, RedisServer};
use support::{
    prelude::*,
    redis::Server,
    served::{BLOCKS_RIGHTS, CONTRIBUTORS_RIGHTS, LEAST_RIGHTS, SLOTS_RIGHTS},
};
use tempfile::TempDir;

use crate::site;

pub(super) struct Place {
    server: Server,
    newest: Arc<Mutex<String>>,
    _folder: TempDir,
}

impl Place {
    /// The server keeps its data and its users over a restart.
    pub(super) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let users = folder.path().join("users");
        fs::write(&users, "user default on nopass ~* &* +@all\n").unwrap();
        let mut args: Vec<&str> = site::ARGS.split(' ').collect();
        args.extend(["--aclfile", users.to_str().unwrap()]);
        let place = Self {
            server: Server::with(&args),
            newest: Arc::default(),
            _folder: folder,
        };
        let rights = [
            &LEAST_RIGHTS[..],
            &BLOCKS_RIGHTS,
            &SLOTS_RIGHTS,
            &CONTRIBUTORS_RIGHTS,
        ];
        let rights = rights.concat().join(" ");
        place.run(&format!("ACL SETUSER limiter reset on {rights}"));
        place.rotate();
        place
    }

    fn run(&self, command: &str) {
        self.server.run::<redis::Value>(command);
    }

    /// Gives the user another password, and closes the user's connections.
    pub(super) fn rotate(&self) {
        let password = format!("{:032x}", fastrand::u128(..));
        self.run(&format!("ACL SETUSER limiter resetpass >{password}"));
        self.run("ACL SAVE");
        *self.newest.lock().unwrap() = password;
        self.run("CLIENT KILL USER limiter");
    }

    pub(super) async fn store(&self) -> RedisStore {
        let newest = Arc::clone(&self.newest);
        let url = self.server.url().replace("//", "//limiter@");
        let server = RedisServer::from(url).credentials(move || {
            let newest = newest.lock().unwrap().clone();
            async { Ok::<_, Infallible>(Credentials::new("limiter", newest)) }
        });
        RedisStore::connect(server).await.unwrap()
    }

    pub(super) fn restart_after(&mut self, down: Duration) {
        self.server.kill();
        sleep(down);
        self.server.restart();
    }

    /// Without the tests' own.
    pub(super) fn connections(&self) -> u64 {
        self.server.info("clients", "connected_clients") - 1
    }

    /// The slots that count as held.
    pub(super) fn held_slots(&self) -> u64 {
        let script = "local time, held = redis.call('TIME'), 0 \
             local now = time[1] * 1000 + math.floor(time[2] / 1000) \
             for _, key in ipairs(redis.call('KEYS', 'sluicegate:*@*')) do \
                 if redis.call('TYPE', key).ok == 'zset' then held = held + redis.call('ZCOUNT', key, now + 1, '+inf') end \
             end \
             return held";
        let mut connection = site::connect(&self.server.socket_url()).unwrap();
        redis::cmd("EVAL")
            .arg(script)
            .arg(0)
            .query(&mut connection)
            .unwrap()
    }

    pub(super) fn keys_without_ttl(&self) -> u64 {
        site::keys_without_ttl(&self.server)
    }
}
