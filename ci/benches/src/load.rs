//! Clients that put a load on the broker: many connections on one thread, for the two cores are shared.

use crate::wire::{self, Source};
use anyhow::{bail, ensure, Context, Result};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// How long a run may go without an answer before it is given up.
const SILENCE: Duration = Duration::from_secs(40);

/// One producer: a connection that sends its frames in turn.
pub struct Producer {
    pub frames: Vec<Vec<u8>>,
    /// Bytes of batches in each frame.
    pub payload: u64,
    /// Requests that may be unanswered.
    pub in_flight: usize,
}

/// What a load run came to.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Batches acknowledged.
    pub acked: u64,
    pub bytes: u64,
    pub wall: Duration,
    /// Request by request.
    pub latencies: Vec<Duration>,
}

impl Outcome {
    pub fn bytes_per_s(&self) -> f64 {
        self.bytes as f64 / self.wall.as_secs_f64()
    }

    pub fn acks_per_s(&self) -> f64 {
        self.acked as f64 / self.wall.as_secs_f64()
    }
}

/// When a run ends: after this time or this many bytes, whichever comes first.
#[derive(Clone, Copy)]
pub struct Limit {
    pub time: Duration,
    pub bytes: u64,
}

struct Conn<'a> {
    plan: &'a Producer,
    stream: TcpStream,
    turn: usize,
    /// The frame that is being sent, and how much of it is.
    sending: Option<(&'a [u8], usize)>,
    sent_at: VecDeque<Instant>,
    inbox: Vec<u8>,
}

impl<'a> Conn<'a> {
    fn open(addr: SocketAddr, plan: &'a Producer) -> Result<Self> {
        let stream = TcpStream::connect(addr).context("cannot reach the broker")?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Conn { plan, stream, turn: 0, sending: None, sent_at: VecDeque::new(), inbox: Vec::new() })
    }

    /// Sends as much as the socket takes and the plan allows.
    fn push(&mut self, more: bool) -> Result<()> {
        loop {
            let (frame, at) = match self.sending {
                Some(s) => s,
                None if more && self.sent_at.len() < self.plan.in_flight => {
                    let frame = &self.plan.frames[self.turn % self.plan.frames.len()];
                    self.turn += 1;
                    self.sent_at.push_back(Instant::now());
                    (frame.as_slice(), 0)
                }
                None => return Ok(()),
            };
            match self.stream.write(&frame[at..]) {
                Ok(n) if at + n == frame.len() => self.sending = None,
                Ok(n) => self.sending = Some((frame, at + n)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.sending = Some((frame, at));
                    return Ok(());
                }
                Err(e) => return Err(e).context("sending to the broker"),
            }
        }
    }

    /// Takes in the answers that have come; calls `each` with every one.
    fn pull(&mut self, mut each: impl FnMut(&[u8], Duration) -> Result<()>) -> Result<usize> {
        let mut chunk = [0u8; 16 << 10];
        let n = match self.stream.read(&mut chunk) {
            Ok(0) => bail!("the broker closed a connection"),
            Ok(n) => n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(0),
            Err(e) => return Err(e).context("reading from the broker"),
        };
        self.inbox.extend_from_slice(&chunk[..n]);
        let (mut at, mut answers) = (0, 0);
        while let Some(head) = self.inbox.get(at..at + 4) {
            let len = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
            let Some(body) = self.inbox.get(at + 4..at + 4 + len) else { break };
            let sent = self.sent_at.pop_front().context("an answer that nobody asked for")?;
            each(body, sent.elapsed())?;
            at += 4 + len;
            answers += 1;
        }
        self.inbox.drain(..at);
        Ok(answers)
    }
}

/// Runs all connections on this thread until `limit`; `each` takes every answer.
fn drive(
    addr: SocketAddr,
    plans: &[Producer],
    limit: Limit,
    mut each: impl FnMut(&[u8], Duration, &Producer) -> Result<()>,
) -> Result<Duration> {
    let mut conns = plans.iter().map(|p| Conn::open(addr, p)).collect::<Result<Vec<_>>>()?;
    let start = Instant::now();
    let (mut last_answer, mut bytes) = (start, 0u64);
    loop {
        let more = start.elapsed() < limit.time && bytes < limit.bytes;
        for c in conns.iter_mut() {
            c.push(more)?;
        }
        if conns.iter().all(|c| c.sent_at.is_empty()) {
            return Ok(start.elapsed());
        }
        ensure!(last_answer.elapsed() < SILENCE, "the broker has not answered for {SILENCE:?}");
        let ready: Vec<bool> = {
            let mut fds: Vec<PollFd> = conns
                .iter()
                .map(|c| {
                    let out = if c.sending.is_some() { PollFlags::OUT } else { PollFlags::empty() };
                    PollFd::new(&c.stream, PollFlags::IN | out)
                })
                .collect();
            poll(&mut fds, Some(&Timespec { tv_sec: 1, tv_nsec: 0 }))?;
            fds.iter()
                .map(|f| f.revents().intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR))
                .collect()
        };
        for (c, _) in conns.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
            let plan = c.plan;
            let answers = c.pull(|body, took| each(body, took, plan))?;
            if answers > 0 {
                last_answer = Instant::now();
                bytes += plan.payload * answers as u64;
                c.push(start.elapsed() < limit.time && bytes < limit.bytes)?;
            }
        }
    }
}

/// Produces with all `plans` at once.
pub fn produce(addr: SocketAddr, plans: &[Producer], limit: Limit) -> Result<Outcome> {
    let mut out = Outcome::default();
    out.wall = drive(addr, plans, limit, |body, took, plan| {
        out.acked += wire::check_produced(body)? as u64;
        out.bytes += plan.payload;
        out.latencies.push(took);
        Ok(())
    })?;
    Ok(out)
}

/// Sends all `plans` at once; how many answers came a second that `check` took.
pub fn answers(
    addr: SocketAddr,
    plans: &[Producer],
    limit: Limit,
    check: impl Fn(&[u8]) -> Result<()>,
) -> Result<f64> {
    let mut count = 0u64;
    let wall = drive(addr, plans, limit, |body, _, _| {
        count += 1;
        check(body)
    })?;
    Ok(count as f64 / wall.as_secs_f64())
}

/// Connections that poll an idle topic's end, each asking again when its answer comes; how many answers came.
pub fn long_poll(addr: SocketAddr, frames: Vec<Vec<u8>>, time: Duration) -> Result<u64> {
    let plans: Vec<Producer> =
        frames.into_iter().map(|f| Producer { frames: vec![f], payload: 0, in_flight: 1 }).collect();
    let mut answers = 0;
    drive(addr, &plans, Limit { time, bytes: u64::MAX }, |mut body, _, _| {
        answers += 1;
        wire::walk_fetched(&mut body, |_| ())
    })?;
    Ok(answers)
}

/// Fetches the first `partitions` of a topic from offset 0, one request at a time as one consumer does, and throws
/// the bytes away. A partition that is read to its end starts over: there is always something to fetch.
pub fn consume(addr: SocketAddr, topic: &str, partitions: usize, limit: Limit) -> Result<Outcome> {
    let all: Vec<i32> = (0..partitions as i32).collect();
    let mut ends = vec![0i64; partitions];
    for (partition, error, end) in wire::Client::connect(addr)?.ends(topic, &all)? {
        ensure!(error == 0 && end > 0, "there is nothing to consume in {topic}-{partition} (error {error})");
        if let Some(slot) = ends.get_mut(partition as usize) {
            *slot = end;
        }
    }
    let stream = TcpStream::connect(addr)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE))?;
    let mut stream = wire::Stream::new(stream, 1 << 20);
    let mut offsets = vec![0i64; partitions];
    let mut out = Outcome::default();
    let start = Instant::now();
    while start.elapsed() < limit.time && out.bytes < limit.bytes {
        let asked = Instant::now();
        stream.send(&wire::fetch(topic, 0, &offsets, 100, 1 << 20)?)?;
        stream.skip(4)?;
        let mut got = 0;
        wire::walk_fetched(&mut stream, |f| {
            got += f.bytes;
            let p = usize::try_from(f.partition).unwrap_or(usize::MAX);
            if let (Some(slot), Some(end), Some(next)) = (offsets.get_mut(p), ends.get(p), f.next) {
                *slot = if next >= *end { 0 } else { next };
            }
        })?;
        ensure!(got > 0, "a fetch of {topic} brought nothing");
        out.bytes += got as u64;
        out.latencies.push(asked.elapsed());
    }
    out.wall = start.elapsed();
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::{BufMut, BytesMut};
    use kafka_protocol::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
    use kafka_protocol::messages::{ProduceResponse, ResponseHeader};
    use kafka_protocol::protocol::Encodable;
    use std::net::{Ipv4Addr, TcpListener};

    /// Answers every frame on every connection with `error` for one partition, in two writes.
    fn answering(connections: usize, error: i16) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        let mut body = BytesMut::new();
        ResponseHeader::default().encode(&mut body, 0).unwrap();
        let parts = vec![PartitionProduceResponse::default().with_error_code(error)];
        let topic = TopicProduceResponse::default().with_partition_responses(parts);
        ProduceResponse::default()
            .with_responses(vec![topic])
            .encode(&mut body, wire::PRODUCE_VERSION)
            .unwrap();
        let mut answer = BytesMut::new();
        answer.put_u32(body.len() as u32);
        answer.extend_from_slice(&body);
        std::thread::spawn(move || {
            for _ in 0..connections {
                let (mut peer, _) = listener.accept().unwrap();
                let answer = answer.clone();
                std::thread::spawn(move || {
                    let mut buf = Vec::new();
                    while wire::read_answer(&mut peer, &mut buf).is_ok() {
                        let (head, tail) = answer.split_at(7);
                        if peer.write_all(head).and_then(|()| peer.write_all(tail)).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        addr
    }

    fn plans(n: usize, size: usize, in_flight: usize) -> Vec<Producer> {
        let batch = wire::batch(1, size).unwrap();
        let frame = wire::produce("t", [0], &batch).unwrap();
        (0..n).map(|_| Producer { frames: vec![frame.clone()], payload: size as u64, in_flight }).collect()
    }

    #[test]
    fn every_request_of_many_producers_is_answered_and_timed() {
        let limit = Limit { time: Duration::from_millis(50), bytes: u64::MAX };
        for (n, size, in_flight) in [(32, 170, 1), (3, 1 << 20, 5)] {
            let out = produce(answering(n, 0), &plans(n, size, in_flight), limit).unwrap();
            assert!(out.acked >= n as u64);
            assert_eq!(out.acked, out.latencies.len() as u64);
            assert_eq!(out.bytes, out.acked * size as u64);
        }
    }

    #[test]
    fn a_run_ends_at_its_limit_of_bytes() {
        let limit = Limit { time: Duration::from_secs(60), bytes: 1700 };
        let out = produce(answering(1, 0), &plans(1, 170, 1), limit).unwrap();
        assert_eq!(out.acked, 10);
    }

    #[test]
    fn a_refused_batch_ends_the_run() {
        let limit = Limit { time: Duration::from_secs(60), bytes: u64::MAX };
        let e = produce(answering(1, 6), &plans(1, 170, 1), limit).unwrap_err();
        assert!(format!("{e:#}").contains("error 6"), "{e:#}");
    }
}
