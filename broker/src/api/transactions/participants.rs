//! Other brokers, as transactions need them: verification with a transaction's coordinator, and markers to those who lead
//! its participants.
//!
//! Where the answer lies with this broker it is asked directly, else over TCP on the others' listeners, in Kafka's own
//! requests (AddPartitionsToTxn, WriteTxnMarkers) with what Kafka does not say in a tagged field ([`super::wire`]). Who is to be
//! asked, the picture of the metadata says; that may be old, and then the one who is asked says so.
//!
//! Promises: nothing is confirmed here that the coordinator did not confirm, and no marker counts as written that its
//! partition did not call durable. Does not repeat what failed: markers are driven by the coordinator, and producers try again.

use super::pool::{PeerError, Pool};
use super::wire::{self, TAG};
use crate::api::group_terms::text;
use crate::cluster::Cluster;
use crate::coordinator::slot_of;
use crate::coordinator::transactions::{Marker, Participant, Participants, Producer};
use crate::coordinator::Transactions;
use crate::reached;
use crate::storage::MarkerError;
use crate::types::{BrokerId, Offset, TopicId};
use async_trait::async_trait;
use kafka_protocol::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use kafka_protocol::messages::write_txn_markers_request::{WritableTxnMarker, WritableTxnMarkerTopic};
use kafka_protocol::messages::{
    AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, ProducerId, TopicName, TransactionalId,
    WriteTxnMarkersRequest,
};
use kafka_protocol::protocol::Request;
use kafka_protocol::ResponseError;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long another broker may take to answer.
const ANSWER: Duration = Duration::from_secs(5);

/// How often a marker is sent back because the partition opened anew in between.
const SENT_BACK: usize = 3;

const ADD_PARTITIONS: i16 = 4;
const WRITE_MARKERS: i16 = 1;

pub struct Peers {
    me: BrokerId,
    // Whoever drives markers holds this, and must not keep a broker alive that was dropped.
    cluster: Weak<Cluster>,
    transactions: Weak<Transactions>,
    /// Kept apart, so that markers for what is stuck hold up no producer.
    questions: Pool,
    markers: Pool,
}

impl Peers {
    pub fn new(cluster: &Arc<Cluster>, transactions: &Arc<Transactions>) -> Arc<Peers> {
        let me = cluster.broker_id();
        Arc::new(Peers {
            me,
            cluster: Arc::downgrade(cluster),
            transactions: Arc::downgrade(transactions),
            questions: Pool::new(me),
            markers: Pool::new(me),
        })
    }

    /// [`Transactions::verify`], wherever the transaction is coordinated.
    ///
    /// # Errors
    /// As there; NETWORK_EXCEPTION if the coordinator cannot be asked.
    pub async fn verify(
        &self,
        txn_id: &str,
        producer: Producer,
        participant: Participant,
        add: bool,
    ) -> Result<u64, ResponseError> {
        match self.coordinator(txn_id)? {
            None => self.transactions()?.verify(txn_id, producer, participant, add).await,
            Some(peer) => {
                let request = self.question(txn_id, producer, &participant, add)?;
                let answer =
                    self.ask((&self.questions, slot_of(txn_id)), peer, ADD_PARTITIONS, &request).await?;
                reached!("verified-with-another-broker");
                read_answer(&answer, &participant)
            }
        }
    }

    fn cluster(&self) -> Result<Arc<Cluster>, ResponseError> {
        self.cluster.upgrade().ok_or(ResponseError::BrokerNotAvailable)
    }

    fn transactions(&self) -> Result<Arc<Transactions>, ResponseError> {
        self.transactions.upgrade().ok_or(ResponseError::CoordinatorNotAvailable)
    }

    /// Who coordinates a group or transactional id; `None`: this broker.
    fn coordinator(&self, id: &str) -> Result<Option<BrokerId>, ResponseError> {
        let coordinator = self.cluster()?.image().coordinator(slot_of(id));
        let coordinator = coordinator.ok_or(ResponseError::CoordinatorNotAvailable)?;
        Ok(Some(coordinator).filter(|c| *c != self.me))
    }

    fn question(
        &self,
        txn_id: &str,
        producer: Producer,
        participant: &Participant,
        add: bool,
    ) -> Result<AddPartitionsToTxnRequest, ResponseError> {
        let asked = AddPartitionsToTxnTransaction::default()
            .with_transactional_id(TransactionalId(text(txn_id)))
            .with_producer_id(ProducerId(producer.id))
            .with_producer_epoch(producer.epoch)
            .with_verify_only(!add);
        let asked = match participant {
            Participant::Group(group) => asked.with_unknown_tagged_field(TAG, wire::group(group)),
            Participant::Partition(id, index) => {
                let topic = AddPartitionsToTxnTopic::default()
                    .with_name(self.name(*id)?)
                    .with_partitions(vec![*index])
                    .with_unknown_tagged_field(TAG, wire::topic(*id));
                asked.with_topics(vec![topic])
            }
        };
        Ok(AddPartitionsToTxnRequest::default().with_transactions(vec![asked]))
    }

    fn name(&self, id: TopicId) -> Result<TopicName, ResponseError> {
        let image = self.cluster()?.image();
        let topic = image.topic_by_id(id).ok_or(ResponseError::UnknownTopicId)?;
        Ok(TopicName(text(topic.name.clone())))
    }

    async fn ask<R: Request>(
        &self,
        (pool, about): (&Pool, u32),
        peer: BrokerId,
        version: i16,
        request: &R,
    ) -> Result<R::Response, ResponseError> {
        let view = self.cluster()?.members();
        let address = view.reachable().find(|(id, _)| *id == peer).map(|(_, address)| address);
        let asked = async {
            let address = address.ok_or(PeerError::Nowhere(peer))?;
            pool.call((peer, address), about, version, request).await
        };
        match tokio::time::timeout(ANSWER, asked).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(e)) => {
                tracing::debug!("{e}");
                Err(ResponseError::NetworkException)
            }
            Err(_) => {
                tracing::debug!("broker {peer} does not answer");
                Err(ResponseError::NetworkException)
            }
        }
    }

    /// Sends a marker to the broker that leads the partition. `Ok(Some(_))`: it is sent back, to be sent again with that.
    async fn send_marker(
        &self,
        peer: BrokerId,
        topic: TopicId,
        partition: i32,
        marker: &Marker,
        first: Option<Offset>,
    ) -> Result<Option<Offset>, ResponseError> {
        let to = WritableTxnMarkerTopic::default()
            .with_name(self.name(topic)?)
            .with_partition_indexes(vec![partition])
            .with_unknown_tagged_field(TAG, wire::marker_topic(topic, first));
        let request = request_of(marker, None, vec![to])?;
        let about = crc32c::crc32c_append(partition as u32, topic.0.as_bytes());
        let answer = self.ask((&self.markers, about), peer, WRITE_MARKERS, &request).await?;
        let mut rows = answer.markers.iter().flat_map(|m| &m.topics).flat_map(|t| &t.partitions);
        let row = rows.next().ok_or(ResponseError::UnknownServerError)?;
        match wire::read_first(&row.unknown_tagged_fields) {
            Ok(Some(first)) => Ok(Some(first)),
            _ => result_of(row.error_code, None),
        }
    }

    async fn lead_marker(
        &self,
        topic: TopicId,
        partition: i32,
        marker: &Marker,
        first: Option<Offset>,
    ) -> Result<Option<Offset>, ResponseError> {
        let image = self.cluster()?.image();
        let leader = image.topic_by_id(topic).ok_or(ResponseError::UnknownTopicId)?.leader(partition);
        let leader = leader.ok_or(ResponseError::NotLeaderOrFollower)?;
        if leader != self.me {
            return self.send_marker(leader, topic, partition, marker, first).await;
        }
        let led = self.cluster()?.engine().get(topic, partition).ok_or(ResponseError::NotLeaderOrFollower)?;
        match led.write_marker(*marker, first).await {
            Ok(()) => Ok(None),
            Err(MarkerError::Unverified { first }) => Ok(Some(first)),
            Err(e) => Err(marker_error(&e)),
        }
    }
}

#[async_trait]
impl Participants for Peers {
    async fn write_marker(
        &self,
        topic: TopicId,
        partition: i32,
        marker: Marker,
    ) -> Result<(), ResponseError> {
        let mut first = None;
        for _ in 0..SENT_BACK {
            // The call is under way, so this very marker is still to be driven: what else the partition asks for.
            first = self.lead_marker(topic, partition, &marker, first).await?;
            if first.is_none() {
                return Ok(());
            }
            reached!("marker-sent-back");
        }
        Err(ResponseError::ConcurrentTransactions)
    }

    async fn write_group_marker(&self, group: &str, marker: Marker) -> Result<(), ResponseError> {
        let Some(peer) = self.coordinator(group)? else {
            return self.transactions()?.apply_group_marker(group, marker).await;
        };
        let request = request_of(&marker, Some(group), Vec::new())?;
        let about = slot_of(group);
        let answer = self.ask((&self.markers, about), peer, WRITE_MARKERS, &request).await?;
        let row = answer.markers.first().ok_or(ResponseError::UnknownServerError)?;
        match wire::read_outcome(&row.unknown_tagged_fields) {
            Ok(Some(code)) => result_of(code, ()),
            _ => Err(ResponseError::UnknownServerError),
        }
    }

    async fn verify_group(
        &self,
        txn_id: &str,
        producer: Producer,
        group: &str,
        add: bool,
    ) -> Result<u64, ResponseError> {
        self.verify(txn_id, producer, Participant::Group(group.to_owned()), add).await
    }
}

pub(super) fn marker_error(e: &MarkerError) -> ResponseError {
    match e {
        MarkerError::NotLeader => ResponseError::NotLeaderOrFollower,
        MarkerError::Storage(_) => ResponseError::KafkaStorageError,
        MarkerError::CoordinatorFenced { .. } => ResponseError::TransactionCoordinatorFenced,
        MarkerError::InvalidProducerEpoch { .. } => ResponseError::InvalidProducerEpoch,
        MarkerError::Unverified { .. } => ResponseError::ConcurrentTransactions,
        MarkerError::OfAnother { .. } => ResponseError::InvalidTxnState,
    }
}

fn request_of(
    marker: &Marker,
    group: Option<&str>,
    topics: Vec<WritableTxnMarkerTopic>,
) -> Result<WriteTxnMarkersRequest, ResponseError> {
    // Without one it would end whatever is open.
    let number = marker.number.ok_or(ResponseError::InvalidRequest)?;
    let row = WritableTxnMarker::default()
        .with_producer_id(ProducerId(marker.producer_id))
        .with_producer_epoch(marker.producer_epoch)
        .with_transaction_result(marker.commit)
        .with_coordinator_epoch(marker.coordinator_epoch)
        .with_topics(topics)
        .with_unknown_tagged_field(TAG, wire::marker(number, group));
    Ok(WriteTxnMarkersRequest::default().with_markers(vec![row]))
}

fn read_answer(answer: &AddPartitionsToTxnResponse, participant: &Participant) -> Result<u64, ResponseError> {
    result_of(answer.error_code, ())?;
    let txn = answer.results_by_transaction.first().ok_or(ResponseError::UnknownServerError)?;
    let said = match participant {
        Participant::Group(_) => wire::read_group_answer(&txn.unknown_tagged_fields),
        Participant::Partition(..) => {
            let mut rows = txn.topic_results.iter().flat_map(|t| &t.results_by_partition);
            let row = rows.next().ok_or(ResponseError::UnknownServerError)?;
            result_of(row.partition_error_code, ())?;
            wire::read_number(&row.unknown_tagged_fields).map(|n| n.map(|n| (0, n)))
        }
    };
    let (code, number) = said.ok().flatten().ok_or(ResponseError::UnknownServerError)?;
    result_of(code, number)
}

fn result_of<T>(code: i16, value: T) -> Result<T, ResponseError> {
    match ResponseError::try_from_code(code) {
        None => Ok(value),
        Some(error) => Err(error),
    }
}
