//! What a broker that is not controller asks of the controller, through the volume.
//!
//! A request is a file of its own, named by lease and number, durable before the heartbeat tells of it; so the controller
//! reads only what is there, and no listing finds it. The answer lies in the metadata, written in the same step as what was
//! changed: whoever reads the one has the other, a controller that dies in between has done both or neither, and its
//! successor answers what is left. Under one lease requests are answered one after another, each once.
//!
//! Does not promise that a request which got no answer was not carried out, as with any request whose answer is lost.

use super::admin::AdminError;
use super::controller::Controller;
use super::files;
use super::layout::LeaseKey;
use super::lease::Lease;
use super::membership::Identity;
use super::metadata::{Metadata, TopicMeta};
use super::roster::View;
use crate::config::TopicConfig;
use crate::rt::Env;
use crate::storage::Fence;
use crate::types::{Epoch, TopicId};
use crate::volume::{Class, VolumeError};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Changes that share one request at most; more wait for the next.
const BATCH: usize = 256;

/// A change of the metadata that can be written down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Ask {
    CreateTopic {
        name: String,
        id: TopicId,
        partitions: i32,
        configs: BTreeMap<String, String>,
    },
    DeleteTopic {
        name: String,
        /// Only this incarnation.
        id: Option<TopicId>,
    },
    CreatePartitions {
        name: String,
        total: i32,
    },
    /// Only while the topic's own configs are still `from`.
    SetConfigs {
        name: String,
        id: TopicId,
        from: BTreeMap<String, String>,
        to: BTreeMap<String, String>,
    },
    /// Who leads under `lease` has opened these partitions again, by itself.
    RaiseEpochs {
        lease: LeaseKey,
        epochs: Vec<(TopicId, i32, Epoch)>,
    },
    /// Who leads under `lease` gave these partitions up, below these epochs for good: the volume does not answer him.
    Disown {
        lease: LeaseKey,
        partitions: Vec<(TopicId, i32, Epoch)>,
    },
}

impl Ask {
    /// Changes `m`, or leaves it as it is and says why.
    ///
    /// `served_by_nobody`: deleted topics whose name is free. While a broker may still serve a deleted topic, whoever asks that
    /// one by name would get the old one's records for the new one's.
    pub fn apply(
        &self,
        m: &mut Metadata,
        defaults: &TopicConfig,
        served_by_nobody: &BTreeSet<TopicId>,
    ) -> Result<(), AdminError> {
        match self.clone() {
            Ask::CreateTopic { name, id, partitions, configs } => {
                checked_overrides(defaults, &configs)?;
                if m.deleting.iter().any(|(id, old)| *old == name && !served_by_nobody.contains(id)) {
                    return Err(AdminError::StillServed(name));
                }
                m.create_topic(&name, TopicMeta { id, partitions, configs, ..TopicMeta::default() })
            }
            Ask::DeleteTopic { name, id } => match m.topics.get(&name) {
                Some(topic) if id.is_none_or(|id| id == topic.id) => m.delete_topic(&name).map(|_| ()),
                _ => Err(AdminError::UnknownTopic(name)),
            },
            Ask::CreatePartitions { name, total } => m.create_partitions(&name, total),
            Ask::SetConfigs { name, id, from, to } => {
                let topic = m.topic_mut(&name)?;
                if topic.id != id {
                    return Err(AdminError::UnknownTopic(name));
                }
                if topic.configs != from {
                    return Err(AdminError::Outpaced(name));
                }
                checked_overrides(defaults, &to)?;
                topic.configs = to;
                Ok(())
            }
            Ask::RaiseEpochs { lease, epochs } => {
                m.raise_epochs(lease, &epochs);
                Ok(())
            }
            Ask::Disown { lease, partitions } => {
                m.disown(lease, &partitions);
                Ok(())
            }
        }
    }
}

/// The overrides of a topic after a change, if a broker can serve them.
fn checked_overrides(defaults: &TopicConfig, overrides: &BTreeMap<String, String>) -> Result<(), AdminError> {
    match TopicConfig::resolve(defaults, overrides) {
        Ok(_) => Ok(()),
        Err(e) => Err(AdminError::InvalidConfig(e.to_string())),
    }
}

/// The answer to the last request under a lease that was answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Answered {
    pub number: u32,
    pub results: Vec<Result<(), AdminError>>,
}

// ---- the asking side

/// A change that waits for its turn, and who waits for it.
pub(super) struct Asking {
    pub ask: Ask,
    pub tell: oneshot::Sender<Result<(), AdminError>>,
}

/// The task that makes a broker's requests.
pub(super) struct Asker {
    pub env: Env,
    pub me: Arc<Identity>,
    pub lease: Arc<Lease>,
    pub controller: Arc<Controller>,
    pub queue: mpsc::Receiver<Asking>,
    /// How long an answer may take.
    pub limit: Duration,
}

impl Asker {
    /// Never returns while somebody may ask.
    pub async fn run(mut self) {
        // Of which lease, and how many were made under it.
        let mut made = (0, 0);
        while let Some(first) = self.queue.recv().await {
            let mut batch = vec![first];
            while batch.len() < BATCH {
                match self.queue.try_recv() {
                    Ok(next) => batch.push(next),
                    Err(_) => break,
                }
            }
            let results = self.batch(&mut made, &batch).await;
            for (n, asking) in batch.into_iter().enumerate() {
                let result = match &results {
                    // As many as were asked, or the controller answered something else.
                    Ok(results) => results.get(n).cloned().unwrap_or(Err(AdminError::NotController)),
                    Err(e) => Err(e.clone()),
                };
                // Whoever asked may have gone away.
                let _ = asking.tell.send(result);
            }
        }
    }

    async fn batch(
        &self,
        made: &mut (u32, u32),
        batch: &[Asking],
    ) -> Result<Vec<Result<(), AdminError>>, AdminError> {
        let token = self.lease.right().ok_or(AdminError::NotController)?;
        let number = u32::try_from(token).map_err(|_| AdminError::NotController)?;
        let n = if made.0 == number { made.1 + 1 } else { 1 };
        *made = (number, n);
        let key = LeaseKey { broker: self.me.broker, number };
        let asks: Vec<&Ask> = batch.iter().map(|asking| &asking.ask).collect();
        let late = || AdminError::Storage("the controller did not answer in time".into());
        tokio::select! {
            biased;
            () = self.lease.until_ended(token) => Err(AdminError::NotController),
            r = tokio::time::timeout(self.limit, self.ask(key, n, &asks)) => r.unwrap_or_else(|_| Err(late())),
        }
    }

    async fn ask(
        &self,
        key: LeaseKey,
        n: u32,
        asks: &[&Ask],
    ) -> Result<Vec<Result<(), AdminError>>, AdminError> {
        let failed = |e: VolumeError| AdminError::Storage(e.to_string());
        let path = key.request(n);
        let content = serde_json::to_vec(asks).map_err(|e| AdminError::Storage(e.to_string()))?;
        let file = self.env.volume.create_new(&path, Class::Control).await.map_err(failed)?;
        // The name need not be durable: what a power cut of the volume takes back was not answered.
        file.write_sync(0, vec![content.into()]).await.map_err(failed)?;
        drop(file);
        self.me.asked(key.number, n);
        self.controller.hurry();
        let mut shown = self.controller.shown();
        loop {
            shown.borrow_and_update();
            if let Some(answered) = self.controller.metadata().answers.get(&key).filter(|a| a.number >= n) {
                let results = answered.results.clone();
                let volume = self.env.volume.clone();
                tokio::spawn(async move { files::tidy_away(&*volume, &path).await });
                return if answered.number == n { Ok(results) } else { Err(AdminError::NotController) };
            }
            if shown.changed().await.is_err() {
                return Err(AdminError::NotController);
            }
        }
    }
}

// ---- the answering side

/// The first unanswered request under a lease.
pub(super) struct Request {
    lease: LeaseKey,
    number: u32,
    asks: Vec<Ask>,
}

impl Request {
    /// Carries it out as far as it is legal, and answers.
    pub fn apply(&self, m: &mut Metadata, defaults: &TopicConfig, served_by_nobody: &BTreeSet<TopicId>) {
        let results = self.asks.iter().map(|ask| ask.apply(m, defaults, served_by_nobody)).collect();
        m.answers.insert(self.lease, Answered { number: self.number, results });
    }
}

/// What heartbeats tell of and `m` has no answer to. What cannot be read is looked for again next time.
pub(super) async fn unanswered(env: &Env, view: &View, m: &Metadata, limit: Duration) -> Vec<Request> {
    let open = view.requested().filter_map(|(lease, made)| {
        let number = m.answers.get(&lease).map_or(0, |a| a.number).saturating_add(1);
        (made >= number).then_some((lease, number, made))
    });
    let reads = open.map(|(lease, number, made)| async move {
        let path = lease.request(number);
        let read = files::within(limit, "read", &path, files::read(&*env.volume, &path)).await;
        match read.map(|bytes| serde_json::from_slice::<Vec<Ask>>(&bytes)) {
            Ok(Ok(asks)) => Some(Request { lease, number, asks }),
            // Nobody waits for it any more: its writer failed, and went on to the next.
            Ok(Err(_)) if made > number => Some(Request { lease, number, asks: Vec::new() }),
            Err(e) if e.is_not_found() && made > number => Some(Request { lease, number, asks: Vec::new() }),
            Ok(Err(e)) => {
                tracing::warn!("{path} cannot be read: {e}; looking again");
                None
            }
            Err(e) => {
                tracing::warn!("{e}; looking again");
                None
            }
        }
    });
    futures::future::join_all(reads).await.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::BrokerId;

    fn id(n: u128) -> TopicId {
        TopicId(uuid::Uuid::from_u128(n))
    }

    fn create(name: &str, n: u128) -> Ask {
        Ask::CreateTopic { name: name.into(), id: id(n), partitions: 1, configs: BTreeMap::new() }
    }

    #[test]
    fn a_name_is_not_free_before_nobody_serves_the_deleted_topic_any_more() {
        let (mut m, defaults) = (Metadata::default(), TopicConfig::default());
        create("t", 1).apply(&mut m, &defaults, &BTreeSet::new()).expect("legal");
        Ask::DeleteTopic { name: "t".into(), id: None }
            .apply(&mut m, &defaults, &BTreeSet::new())
            .expect("there");
        let again = |m: &mut Metadata, free: &[u128]| {
            create("t", 2).apply(m, &defaults, &free.iter().map(|n| id(*n)).collect())
        };
        assert_eq!(again(&mut m, &[]), Err(AdminError::StillServed("t".into())));
        assert_eq!(again(&mut m, &[7]), Err(AdminError::StillServed("t".into())));
        create("u", 3).apply(&mut m, &defaults, &BTreeSet::new()).expect("another name");
        again(&mut m, &[1]).expect("free");
    }

    #[test]
    fn a_request_is_answered_one_by_one_and_what_is_refused_changes_nothing() {
        let (mut m, defaults) = (Metadata::default(), TopicConfig::default());
        let lease = LeaseKey { broker: BrokerId(2), number: 3 };
        let asks = vec![create("t", 1), create("t", 2), Ask::CreatePartitions { name: "t".into(), total: 4 }];
        let written = serde_json::to_vec(&asks).expect("encodes");
        let asks = serde_json::from_slice(&written).expect("is read back");
        Request { lease, number: 5, asks }.apply(&mut m, &defaults, &BTreeSet::new());
        let m = Metadata::decode("m", &m.encode()).expect("sound");
        let results = vec![Ok(()), Err(AdminError::TopicExists("t".into())), Ok(())];
        assert_eq!(m.answers.get(&lease), Some(&Answered { number: 5, results }));
        assert_eq!((m.topics["t"].id, m.topics["t"].partitions), (id(1), 4));
    }

    #[test]
    fn configs_are_set_only_upon_what_they_were_made_from() {
        let (mut m, defaults) = (Metadata::default(), TopicConfig::default());
        create("t", 1).apply(&mut m, &defaults, &BTreeSet::new()).expect("legal");
        let set = |n: u128, from: &[(&str, &str)], to: &[(&str, &str)]| {
            let of = |c: &[(&str, &str)]| c.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
            Ask::SetConfigs { name: "t".into(), id: id(n), from: of(from), to: of(to) }
        };
        let (a, b) = ([("flush.ms", "7")], [("flush.ms", "8")]);
        set(1, &[], &a).apply(&mut m, &defaults, &BTreeSet::new()).expect("legal");
        let outpaced = set(1, &[], &b).apply(&mut m, &defaults, &BTreeSet::new());
        assert_eq!(outpaced, Err(AdminError::Outpaced("t".into())));
        let other = set(2, &a, &b).apply(&mut m, &defaults, &BTreeSet::new());
        assert_eq!(other, Err(AdminError::UnknownTopic("t".into())), "of an earlier topic of that name");
        let illegal = set(1, &a, &[("flush.ms", "x")]).apply(&mut m, &defaults, &BTreeSet::new());
        assert!(matches!(illegal, Err(AdminError::InvalidConfig(_))), "{illegal:?}");
        set(1, &a, &b).apply(&mut m, &defaults, &BTreeSet::new()).expect("legal");
    }
}
