//! The writing half of a connection: answers in the order of the requests.

use super::budget::Share;
use super::turns::Done;
use crate::api::{Answer, Hangup, Reply};
use bytes::{Buf, Bytes};
use futures::future::BoxFuture;
use futures::stream::{FuturesOrdered, StreamExt};
use futures::FutureExt;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::time::Duration;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc::UnboundedReceiver;

/// Answers that are ready are written together up to this many bytes.
const BATCH_BYTES: usize = 256 << 10;
/// Pieces per vectored write. IOV_MAX is 1024.
const MAX_PIECES: usize = 64;

/// A request under way.
pub type Slot = BoxFuture<'static, Done>;

/// Holds `share` until the answer of `reply` is written, or nobody waits for it any more.
pub fn beside(reply: Reply, share: Share) -> Slot {
    Box::pin(async move { (reply.await, Some(share)) })
}

#[derive(Debug, thiserror::Error)]
pub enum WriteEnd {
    #[error(transparent)]
    Hangup(#[from] Hangup),
    #[error("the client took no bytes for {0:?}")]
    Stuck(Duration),
    #[error("write: {0}")]
    Io(#[from] io::Error),
}

/// Works on what comes through `slots`, and writes the answers in that order, until the sender is dropped
/// and all is answered. `patience`: how long a client may take no bytes at all.
pub async fn run(
    mut to: impl AsyncWrite + Unpin,
    mut slots: UnboundedReceiver<Slot>,
    patience: Duration,
) -> Result<(), WriteEnd> {
    let mut under_way = FuturesOrdered::new();
    let mut open = true;
    while open || !under_way.is_empty() {
        let first = tokio::select! {
            biased;
            slot = slots.recv(), if open => {
                match slot {
                    Some(slot) => under_way.push_back(slot),
                    None => open = false,
                }
                continue;
            }
            Some(done) = under_way.next(), if !under_way.is_empty() => done,
        };
        let mut batch = Batch::default();
        // What goes before a hangup is still written.
        let mut end = batch.add(first).err();
        while end.is_none() && batch.bytes < BATCH_BYTES {
            match under_way.next().now_or_never().flatten() {
                Some(done) => end = batch.add(done).err(),
                None => break,
            }
        }
        batch.write(&mut to, patience).await?;
        if let Some(hangup) = end {
            return Err(hangup.into());
        }
    }
    Ok(())
}

/// Answers that are written together. Their shares of the budget are given back when all is written.
#[derive(Default)]
struct Batch {
    pieces: VecDeque<Bytes>,
    bytes: usize,
    shares: Vec<Share>,
}

impl Batch {
    fn add(&mut self, (answer, share): Done) -> Result<(), Hangup> {
        self.shares.extend(share);
        if let Answer::Frame(pieces) = answer? {
            self.bytes += pieces.iter().map(Bytes::len).sum::<usize>();
            self.pieces.extend(pieces.into_iter().filter(|p| !p.is_empty()));
        }
        Ok(())
    }

    async fn write(mut self, to: &mut (impl AsyncWrite + Unpin), patience: Duration) -> Result<(), WriteEnd> {
        if self.pieces.is_empty() {
            return Ok(());
        }
        while !self.pieces.is_empty() {
            let n = within(patience, write_some(to, &self.pieces)).await?;
            if n == 0 {
                return Err(io::Error::from(io::ErrorKind::WriteZero).into());
            }
            take_off(&mut self.pieces, n);
        }
        within(patience, to.flush()).await
    }
}

async fn write_some(to: &mut (impl AsyncWrite + Unpin), pieces: &VecDeque<Bytes>) -> io::Result<usize> {
    let slices: Vec<_> = pieces.iter().take(MAX_PIECES).map(|p| IoSlice::new(p)).collect();
    to.write_vectored(&slices).await
}

fn take_off(pieces: &mut VecDeque<Bytes>, mut n: usize) {
    while let Some(first) = pieces.front_mut() {
        if n < first.len() {
            first.advance(n);
            return;
        }
        n -= first.len();
        pieces.pop_front();
    }
}

async fn within<T>(
    patience: Duration,
    io: impl std::future::Future<Output = io::Result<T>>,
) -> Result<T, WriteEnd> {
    match tokio::time::timeout(patience, io).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(WriteEnd::Stuck(patience)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::budget::unbounded;
    use tokio::io::AsyncReadExt;
    use tokio::sync::{mpsc, oneshot};

    const PATIENCE: Duration = Duration::from_secs(5);

    fn frame(text: &'static str) -> Answer {
        Answer::Frame(vec![Bytes::from_static(text.as_bytes()), Bytes::new()])
    }

    fn ready(answer: Result<Answer, Hangup>) -> Reply {
        Box::pin(async move { answer })
    }

    #[tokio::test]
    async fn answers_leave_in_order_though_the_last_is_ready_first() {
        let (mut client, server) = tokio::io::duplex(5);
        let (tx, rx) = mpsc::unbounded_channel();
        let budget = unbounded();
        let send = |reply| tx.send(beside(reply, budget.take(1))).unwrap_or_default();
        let (go, went) = oneshot::channel::<()>();
        let (ran, runs) = oneshot::channel::<()>();
        send(Box::pin(async move {
            went.await.unwrap();
            Ok(frame("first "))
        }));
        send(ready(Ok(Answer::Silence)));
        send(Box::pin(async move {
            ran.send(()).unwrap();
            Ok(frame("third"))
        }));
        drop(tx);
        let writer = tokio::spawn(run(server, rx, PATIENCE));
        runs.await.expect("the third is worked on while the first waits");
        go.send(()).unwrap();
        let mut got = String::new();
        client.read_to_string(&mut got).await.unwrap();
        assert_eq!(got, "first third");
        writer.await.unwrap().unwrap();
        assert!(budget.is_idle());
    }

    #[tokio::test]
    async fn a_hangup_lets_what_stands_before_it_out_and_nothing_behind_it() {
        let (mut client, server) = tokio::io::duplex(100);
        let (tx, rx) = mpsc::unbounded_channel();
        let budget = unbounded();
        for reply in [Ok(frame("one")), Err(Hangup::new("enough")), Ok(frame("two"))] {
            tx.send(beside(ready(reply), budget.take(1))).unwrap_or_default();
        }
        assert!(matches!(run(server, rx, PATIENCE).await, Err(WriteEnd::Hangup(_))));
        let mut got = String::new();
        client.read_to_string(&mut got).await.unwrap();
        assert_eq!(got, "one");
    }

    #[tokio::test]
    async fn a_client_that_takes_nothing_is_given_up() {
        let (_client, server) = tokio::io::duplex(2);
        let (tx, rx) = mpsc::unbounded_channel();
        let budget = unbounded();
        tx.send(beside(ready(Ok(frame("longer"))), budget.take(1))).unwrap_or_default();
        let end = run(server, rx, Duration::from_millis(20)).await;
        assert!(matches!(end, Err(WriteEnd::Stuck(_))));
        assert!(budget.is_idle());
    }
}
