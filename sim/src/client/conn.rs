//! One connection: frames out, frames in, answers in the order of the requests (Kafka protocol guide,
//! *Network*).
//!
//! A request that was handed over counts as sent, whatever becomes of the connection. The connection is
//! given up as a whole: when it ends, all that wait on it are cut off.

use crate::history::{now, Lost};
use bytes::{Buf, Bytes, BytesMut};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(3);
/// No broker sends a larger frame here.
const MAX_FRAME: usize = 64 << 20;

pub struct Conn {
    addr: SocketAddr,
    out: WriteHalf<TcpStream>,
    shared: Arc<Shared>,
    reader: JoinHandle<()>,
    correlation_id: i32,
}

/// Is told what came, and when.
type Waiter = oneshot::Sender<(Duration, Result<Bytes, Lost>)>;

#[derive(Default)]
struct Shared(Mutex<State>);

#[derive(Default)]
struct State {
    waiting: VecDeque<(i32, Waiter)>,
    ended: Option<String>,
}

impl Shared {
    /// Cuts off all that wait, and all that come.
    fn end(&self, why: &str) {
        let waiting = {
            let mut state = self.0.lock();
            state.ended.get_or_insert_with(|| why.to_owned());
            std::mem::take(&mut state.waiting)
        };
        for (_, waiter) in waiting {
            let _ = waiter.send((now(), Err(Lost::CutOff(why.to_owned()))));
        }
    }
}

/// An answer that is still to come.
pub struct Pending {
    answer: oneshot::Receiver<(Duration, Result<Bytes, Lost>)>,
    shared: Arc<Shared>,
}

impl Pending {
    /// The answer's frame behind the correlation id. When it is late the connection ends, as with any Kafka
    /// client: what comes later on it would not be believed. With it, when it came: whoever waits may be late to look.
    pub async fn wait(self, deadline: Duration) -> (Duration, Result<Bytes, Lost>) {
        match tokio::time::timeout(deadline, self.answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => (now(), Err(Lost::CutOff("the connection was dropped".into()))),
            Err(_) => {
                self.shared.end("an earlier request timed out");
                (now(), Err(Lost::TimedOut))
            }
        }
    }
}

impl Conn {
    pub async fn connect(addr: SocketAddr) -> Result<Conn, Lost> {
        let stream = match tokio::time::timeout(CONNECT, TcpStream::connect(addr)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(e)) => return Err(Lost::NotSent(format!("{addr}: {e}"))),
            Err(_) => return Err(Lost::NotSent(format!("{addr}: no connection"))),
        };
        let (read, out) = tokio::io::split(stream);
        let shared = Arc::new(Shared::default());
        let reader = tokio::spawn(read_all(read, shared.clone()));
        Ok(Conn { addr, out, shared, reader, correlation_id: 0 })
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn is_open(&self) -> bool {
        self.shared.0.lock().ended.is_none()
    }

    /// Sends the frame that `encode` makes for a correlation id. `answered`: the broker sends an answer.
    pub async fn send(
        &mut self,
        answered: bool,
        encode: impl FnOnce(i32) -> BytesMut,
    ) -> Result<Pending, Lost> {
        self.correlation_id = self.correlation_id.wrapping_add(1);
        let frame = encode(self.correlation_id);
        let (tell, answer) = oneshot::channel();
        {
            let mut state = self.shared.0.lock();
            if let Some(why) = &state.ended {
                return Err(Lost::NotSent(why.clone()));
            }
            if answered {
                state.waiting.push_back((self.correlation_id, tell));
            }
        }
        let sent = async {
            self.out.write_all(&frame).await?;
            // A simulated connection sends only when flushed.
            self.out.flush().await
        };
        if let Err(e) = sent.await {
            self.shared.end(&e.to_string());
        }
        Ok(Pending { answer, shared: self.shared.clone() })
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        self.reader.abort();
        self.shared.end("the client closed the connection");
    }
}

async fn read_all(mut from: ReadHalf<TcpStream>, shared: Arc<Shared>) {
    let mut inbound = BytesMut::new();
    loop {
        while let Some(frame) = next_frame(&mut inbound) {
            if !deliver(&shared, frame) {
                return;
            }
        }
        match from.read_buf(&mut inbound).await {
            Ok(0) => return shared.end("the broker closed the connection"),
            Err(e) => return shared.end(&e.to_string()),
            Ok(_) => {}
        }
    }
}

fn next_frame(inbound: &mut BytesMut) -> Option<Bytes> {
    let size = i32::from_be_bytes(*inbound.first_chunk::<4>()?);
    // Too large, or negative: whoever waits finds that it can't be read.
    let size = usize::try_from(size).unwrap_or(0).min(MAX_FRAME);
    if inbound.len() < 4 + size {
        return None;
    }
    inbound.advance(4);
    Some(inbound.split_to(size).freeze())
}

/// Gives a frame to the request that it answers. Returns whether the connection can go on.
fn deliver(shared: &Shared, mut frame: Bytes) -> bool {
    let Some((expected, waiter)) = shared.0.lock().waiting.pop_front() else {
        shared.end("the broker answered what was not asked");
        return false;
    };
    let id = if frame.len() >= 4 { frame.get_i32() } else { -1 };
    if id != expected {
        let _ =
            waiter.send((now(), Err(Lost::Garbled(format!("an answer to request {id}, not {expected}")))));
        shared.end("an answer out of order");
        return false;
    }
    // Whoever gave up waiting has dropped the receiver.
    let _ = waiter.send((now(), Ok(frame)));
    true
}
