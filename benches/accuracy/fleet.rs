//! Worker processes that share limits, started and ended together.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, UNIX_EPOCH},
};

use crate::{
    clock::Clock,
    job::{JOB, Job},
    judge::Record,
};

pub(crate) struct Fleet(Vec<Worker>);

struct Worker {
    process: Child,
    /// The worker works until this pipe is closed.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// The worker's clock when it was ready, minus our clock when the message arrived.
    ahead_s: i64,
}

impl Fleet {
    /// Starts this number of processes together, as soon as all are ready.
    pub(crate) fn start(job: &Job, processes: usize) -> Self {
        Self::go((0..processes).map(|_| Worker::start(job, None)).collect())
    }

    /// Starts a process for each of these clocks.
    pub(crate) fn with_clocks(job: &Job, clocks: &[Clock]) -> Self {
        Self::go(
            clocks
                .iter()
                .map(|clock| Worker::start(job, Some(clock)))
                .collect(),
        )
    }

    fn go(mut workers: Vec<Worker>) -> Self {
        for worker in &mut workers {
            worker.becomes_ready();
        }
        for worker in &mut workers {
            worker.input.as_mut().unwrap().write_all(b"!").unwrap();
        }
        Self(workers)
    }

    /// The time by which each clock is ahead of ours, in minutes, about.
    pub(crate) fn minutes_ahead(&self) -> impl Iterator<Item = i64> {
        self.0
            .iter()
            .map(|worker| (worker.ahead_s + 30).div_euclid(60))
    }

    /// The records of all processes, after this additional time.
    pub(crate) fn end_after(mut self, time: Duration) -> Vec<Record> {
        std::thread::sleep(time);
        for worker in &mut self.0 {
            worker.input = None;
        }
        let records = self.0.iter_mut().flat_map(Worker::records);
        records.collect()
    }
}

impl Worker {
    fn start(job: &Job, clock: Option<&Clock>) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .env(JOB, serde_json::to_string(job).unwrap())
            .envs(clock.map(Clock::env).into_iter().flatten())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            input: process.stdin.take(),
            output: BufReader::new(process.stdout.take().unwrap()),
            process,
            ahead_s: 0,
        }
    }

    fn becomes_ready(&mut self) {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let clock: i64 = line.trim().parse().expect("a worker failed");
        self.ahead_s = clock - UNIX_EPOCH.elapsed().unwrap().as_secs().cast_signed();
    }

    fn records(&mut self) -> Vec<Record> {
        serde_json::from_reader(&mut self.output).expect("a worker failed")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
