//! One connection: a half that reads and starts requests, and a half that answers (see [`super::outbox`]).
//! Both run in one task; when either ends, so does the connection, and what was under way beside it is
//! given up; what takes turns, see [`super::turns`].

use super::budget::{Budget, Queued, Share};
use super::framing::{FrameError, Inbound};
use super::outbox::{self, Slot, WriteEnd};
use super::turns::{Begun, Turns};
use crate::api::{self, Closing, Hangup, Peer, Work};
use bytes::Bytes;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::mpsc::{self, UnboundedSender};

/// While a connection may not start more, this much is read ahead: what notices that the client left.
const READ_AHEAD: usize = 64 << 10;

/// What bounds a connection.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// `socket.request.max.bytes`
    pub max_frame: usize,
    /// `connections.max.idle.ms`
    pub max_idle: Duration,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum End {
    /// The client closed it between two requests, or the broker stops.
    #[error("closed")]
    Closed,
    #[error("the client closed the connection in the middle of a frame")]
    CutShort,
    #[error("idle for {0:?}")]
    Idle(Duration),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Hangup(#[from] Hangup),
    #[error("read: {0}")]
    Read(io::Error),
    #[error(transparent)]
    Write(WriteEnd),
}

impl End {
    /// Whether this is worth a line in the log: a client that goes away is not.
    pub fn is_noteworthy(&self) -> bool {
        match self {
            End::Closed | End::Idle(_) | End::Read(_) | End::Write(WriteEnd::Io(_)) => false,
            End::CutShort | End::Frame(_) | End::Hangup(_) | End::Write(_) => true,
        }
    }
}

/// Serves one connection to its end.
pub async fn serve(
    stream: impl AsyncRead + AsyncWrite + Send,
    peer: Peer,
    limits: Limits,
    queued: Arc<Queued>,
    closing: &Closing,
) -> End {
    let (from, to) = tokio::io::split(stream);
    let (slots, taken) = mpsc::unbounded_channel();
    let budget = Arc::new(Budget::new(queued));
    let mut reader = Reader {
        inbound: Inbound::new(limits.max_frame),
        budget,
        max_idle: limits.max_idle,
        turns: Turns::default(),
        slots,
    };
    let mut writing = std::pin::pin!(outbox::run(to, taken, limits.max_idle));
    let ended = {
        let mut reading = std::pin::pin!(reader.run(from, &peer, closing));
        tokio::select! {
            biased;
            end = &mut writing => return end.map_or_else(End::Write, |()| End::Closed),
            end = &mut reading => end,
        }
    };
    drop(reader);
    match ended {
        // The broker stops, or a request closes the connection: what came before is still answered.
        Ok(()) => writing.await.map_or_else(End::Write, |()| End::Closed),
        Err(End::Hangup(hangup)) => writing.await.map_or_else(End::Write, |()| End::Hangup(hangup)),
        Err(end) => end,
    }
}

struct Reader {
    inbound: Inbound,
    budget: Arc<Budget>,
    max_idle: Duration,
    turns: Turns,
    slots: UnboundedSender<Slot>,
}

impl Reader {
    /// Reads and starts requests. `Ok` when the broker stops.
    async fn run(
        &mut self,
        mut from: impl AsyncRead + Unpin,
        peer: &Peer,
        closing: &Closing,
    ) -> Result<(), End> {
        let mut closing = std::pin::pin!(closing.heard());
        loop {
            let frame = tokio::select! {
                biased;
                () = &mut closing => return Ok(()),
                frame = self.next_frame(&mut from) => frame?,
            };
            let share = self.budget.take(frame.len());
            self.start(peer, frame, share).await?;
        }
    }

    async fn start(&mut self, peer: &Peer, frame: Bytes, mut share: Share) -> Result<(), Hangup> {
        let started = api::begin(peer, frame).await?;
        share.grow(started.request_bytes, started.response_bytes);
        let slot: Slot = match started.work {
            Work::Beside(reply) => outbox::beside(reply, share),
            Work::InTurn(work) => Box::pin(self.turns.run(work, Begun::GoesOn, share)),
            Work::Waiting(work) => Box::pin(self.turns.run(work, Begun::IsGivenUp, share)),
        };
        // The receiver lives as long as this half does.
        let _ = self.slots.send(slot);
        Ok(())
    }

    /// The next request, as soon as the budget lets it in.
    async fn next_frame(&mut self, from: &mut (impl AsyncRead + Unpin)) -> Result<Bytes, End> {
        loop {
            let has_room = self.budget.has_room();
            if has_room {
                if let Some(frame) = self.inbound.next_frame()? {
                    return Ok(frame);
                }
            }
            let may_read = has_room || self.inbound.len() < READ_AHEAD;
            tokio::select! {
                biased;
                () = self.budget.room(), if !has_room => {}
                read = from.read_buf(self.inbound.room()), if may_read => match read.map_err(End::Read)? {
                    0 if self.inbound.len() == 0 => return Err(End::Closed),
                    0 => return Err(End::CutShort),
                    _ => {}
                },
                () = tokio::time::sleep(self.max_idle) => {
                    if self.budget.is_idle() {
                        return Err(End::Idle(self.max_idle));
                    }
                }
            }
        }
    }
}
