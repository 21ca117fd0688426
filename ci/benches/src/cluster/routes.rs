//! Who leads what, as the brokers tell it: shared by the clients of one load, so that the more of them ask at once, the
//! fewer requests each costs.

use crate::wire::Client;
use anyhow::{bail, Result};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// A broker that does not answer for so long is passed over for the next one.
const PATIENCE: Duration = Duration::from_millis(250);

#[derive(Clone, Debug, Default)]
struct Picture {
    /// Partition to broker.
    leaders: BTreeMap<i32, i32>,
    addrs: BTreeMap<i32, SocketAddr>,
    controller: i32,
}

struct State {
    picture: Picture,
    /// When it was asked for.
    as_of: Option<Instant>,
    /// Who answered last is asked first.
    bootstrap: Vec<SocketAddr>,
    link: Option<Client>,
}

pub struct Routes {
    topic: String,
    state: Mutex<State>,
}

impl Routes {
    pub fn new(topic: &str, bootstrap: Vec<SocketAddr>) -> Self {
        let state = State { picture: Picture::default(), as_of: None, bootstrap, link: None };
        Routes { topic: topic.to_string(), state: Mutex::new(state) }
    }

    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Asks the brokers, unless that was done since `than`. If none answers, the last picture stays.
    pub fn refresh(&self, than: Instant) {
        let mut state = self.state.lock();
        if state.as_of.is_some_and(|at| at >= than) {
            return;
        }
        for _ in 0..state.bootstrap.len() {
            let asked = Instant::now();
            match state.ask(&self.topic) {
                Ok(picture) => {
                    state.picture = picture;
                    state.as_of = Some(asked);
                    return;
                }
                Err(_) => {
                    state.link = None;
                    state.bootstrap.rotate_left(1);
                }
            }
        }
    }

    pub fn leaders(&self) -> BTreeMap<i32, i32> {
        self.state.lock().picture.leaders.clone()
    }

    pub fn controller(&self) -> i32 {
        self.state.lock().picture.controller
    }

    /// Where the leader of a partition is reached, if it has one.
    pub fn leader(&self, partition: i32) -> Option<SocketAddr> {
        let state = self.state.lock();
        state.picture.addrs.get(state.picture.leaders.get(&partition)?).copied()
    }
}

impl State {
    fn ask(&mut self, topic: &str) -> Result<Picture> {
        let link = match &mut self.link {
            Some(link) => link,
            None => {
                let Some(&first) = self.bootstrap.first() else { bail!("no broker is known") };
                self.link.insert(Client::connect_within(first, PATIENCE, PATIENCE)?)
            }
        };
        let answer = link.metadata(topic)?;
        let mut picture = Picture { controller: answer.controller_id.0, ..Picture::default() };
        for broker in answer.brokers {
            let ip: IpAddr = broker.host.parse()?;
            picture.addrs.insert(broker.node_id.0, SocketAddr::new(ip, u16::try_from(broker.port)?));
        }
        let partitions = answer.topics.into_iter().flat_map(|t| t.partitions);
        for p in partitions.filter(|p| p.leader_id.0 >= 0) {
            picture.leaders.insert(p.partition_index, p.leader_id.0);
        }
        Ok(picture)
    }
}
