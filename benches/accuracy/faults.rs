//! Servers that die, hang, lose their data and move while limits are being used up.

use std::{thread::sleep, time::Duration};

use crate::{
    fleet::Fleet,
    job::{Job, Where},
    judge::{Record, Verdict},
    page::{Page, Promise, table},
    rule,
};
use support::{cluster::Cluster, redis::Server, sentinel::Group};

/// A window longer than a failover, so that lost data would show.
const FAILED_OVER: &str = "300/6s";
const WINDOW: Duration = Duration::from_secs(6);

const PROCESSES: usize = 2;

/// Enough time to use up half a limit, so that all keys are being charged.
const BEFORE: Duration = Duration::from_millis(1_500);

pub(crate) fn faults(page: &mut Page) {
    table("Through failovers, resharding and outages", &["", "rule"]);
    slots_moved(page);
    sentinels(page);
    cluster(page);
    outage(page);
    emptied(page);
}

fn row(page: &mut Page, what: &str, text: &str, records: &[Record], promise: Promise) {
    let of = format!("`{text}`");
    page.row(&[&what, &of], &rule(text), records, promise);
}

/// Requests for twice the limit of each key.
fn job(at: Where, rules: &str, keys: u64) -> Job {
    Job {
        timeout: Duration::from_millis(500),
        ..Job::calm(at, &[rules], keys, PROCESSES, 1)
    }
}

fn slots_moved(page: &mut Page) {
    const RULE: &str = "60/1s";
    const KEYS: u64 = 12;
    let cluster = Cluster::start(Duration::from_secs(60));
    let job = job(Where::Cluster(cluster.urls()), RULE, KEYS);
    let fleet = Fleet::start(&job, PROCESSES);
    sleep(BEFORE);
    for key in 0..KEYS {
        let user = format!("user={}{key}", job.load);
        let (slot, from) = (cluster.slot(&user), cluster.home(&user));
        let to = (from + 1) % 3;
        // Requests have to meet each stage of the move, so give each some time.
        cluster.begin_move(slot, from, to);
        sleep(Duration::from_millis(100));
        cluster.move_a_key(slot, from, to);
        sleep(Duration::from_millis(100));
        cluster.end_move(slot, from, to);
    }
    let records = fleet.end_after(BEFORE);
    row(
        page,
        "12 slots of a cluster moved, one by one",
        RULE,
        &records,
        Promise::Intact,
    );
}

fn sentinels(page: &mut Page) {
    let mut group = Group::start(&[]);
    let fleet = Fleet::start(
        &job(Where::Sentinels(group.urls()), FAILED_OVER, 40),
        PROCESSES,
    );
    sleep(BEFORE);
    let primary = group.primary();
    group.servers[primary].kill();
    group.promoted(primary);
    let records = fleet.end_after(WINDOW);
    row(
        page,
        "a primary killed, another promoted by sentinels",
        FAILED_OVER,
        &records,
        Promise::Forgotten,
    );
}

fn cluster(page: &mut Page) {
    let mut cluster = Cluster::start(Duration::from_millis(500));
    let fleet = Fleet::start(
        &job(Where::Cluster(cluster.urls()), FAILED_OVER, 40),
        PROCESSES,
    );
    sleep(BEFORE);
    cluster.nodes[1].kill();
    cluster.wait_for_promotion(1);
    let records = fleet.end_after(WINDOW);
    row(
        page,
        "a primary of a cluster killed",
        FAILED_OVER,
        &records,
        Promise::Forgotten,
    );
}

fn outage(page: &mut Page) {
    const RULE: &str = "60/2s";
    let server = Server::start();
    let job = Job {
        // Each client decides its share, so that all of them together keep the limit.
        replicas: u32::try_from(PROCESSES).ok(),
        timeout: Duration::from_millis(100),
        ..job(Where::Server(server.url()), RULE, 20)
    };
    let fleet = Fleet::start(&job, PROCESSES);
    sleep(BEFORE);
    server.stop();
    sleep(2 * BEFORE);
    server.cont();
    let records = fleet.end_after(2 * BEFORE);
    row(
        page,
        "a server that hangs for 3 s, clients that decide locally meanwhile",
        RULE,
        &records,
        Promise::Local,
    );
}

/// The server loses everything. This shows that the model notices.
fn emptied(page: &mut Page) {
    let mut server = Server::start();
    let fleet = Fleet::start(
        &job(Where::Server(server.url()), FAILED_OVER, 40),
        PROCESSES,
    );
    sleep(WINDOW / 2);
    server.kill();
    server.restart();
    let records = fleet.end_after(WINDOW);
    row(
        page,
        "a server that was killed and comes back empty",
        FAILED_OVER,
        &records,
        Promise::Forgotten,
    );
    let seen = Verdict::of(&rule(FAILED_OVER), &records).beyond > 0;
    page.promise(seen, "an empty server is not noticed by the model");
}
