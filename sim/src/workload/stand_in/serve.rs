//! The wire.

use super::transactions::{carry_out, reaper};
use super::{Broker, Flaw, Line, Shared};
use crate::client::version::TRANSACTIONS_2;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::*;
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};
use rand::Rng;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use uuid::Uuid;

pub async fn serve(broker: Shared, addr: SocketAddr) {
    tokio::spawn(reaper(broker.clone()));
    let listener = TcpListener::bind(addr).await.expect("it listens");
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(connection(broker.clone(), stream, addr));
    }
}

async fn connection(broker: Shared, mut stream: TcpStream, addr: SocketAddr) {
    loop {
        let mut size = [0; 4];
        if stream.read_exact(&mut size).await.is_err() {
            return;
        }
        let mut frame = vec![0; u32::from_be_bytes(size) as usize];
        if stream.read_exact(&mut frame).await.is_err() {
            return;
        }
        let pause = broker.lock().moment();
        tokio::time::sleep(pause).await;
        let answer = handle(&broker, Bytes::from(frame), addr);
        let pause = broker.lock().moment();
        tokio::time::sleep(pause).await;
        // Done, and nobody is told.
        if broker.lock().rng.gen_bool(0.01) {
            return;
        }
        if stream.write_all(&answer).await.is_err() || stream.flush().await.is_err() {
            return;
        }
    }
}

/// Decodes, does, encodes.
fn handle(broker: &Shared, mut frame: Bytes, addr: SocketAddr) -> Bytes {
    let key = i16::from_be_bytes([frame[0], frame[1]]);
    let version = i16::from_be_bytes([frame[2], frame[3]]);
    let api = ApiKey::try_from(key).expect("a known API");
    let header = RequestHeader::decode(&mut frame, api.request_header_version(version)).expect("a header");
    let call = Call { broker, version, correlation: header.correlation_id, addr };
    match api {
        ApiKey::Metadata => call.answer::<MetadataRequest>(frame, Call::metadata),
        ApiKey::CreateTopics => call.answer::<CreateTopicsRequest>(frame, Call::create_topics),
        ApiKey::FindCoordinator => call.answer::<FindCoordinatorRequest>(frame, Call::find_coordinator),
        ApiKey::InitProducerId => call.answer::<InitProducerIdRequest>(frame, Call::init),
        ApiKey::AddPartitionsToTxn => call.answer::<AddPartitionsToTxnRequest>(frame, Call::add_partitions),
        ApiKey::AddOffsetsToTxn => call.answer::<AddOffsetsToTxnRequest>(frame, Call::add_offsets),
        ApiKey::TxnOffsetCommit => call.answer::<TxnOffsetCommitRequest>(frame, Call::txn_offset_commit),
        ApiKey::EndTxn => call.answer::<EndTxnRequest>(frame, Call::end),
        ApiKey::Produce => call.answer::<ProduceRequest>(frame, Call::produce),
        ApiKey::Fetch => call.answer::<FetchRequest>(frame, Call::fetch),
        ApiKey::ListOffsets => call.answer::<ListOffsetsRequest>(frame, Call::list_offsets),
        ApiKey::OffsetCommit => call.answer::<OffsetCommitRequest>(frame, Call::offset_commit),
        ApiKey::OffsetFetch => call.answer::<OffsetFetchRequest>(frame, Call::offset_fetch),
        ApiKey::JoinGroup => call.answer::<JoinGroupRequest>(frame, Call::join),
        ApiKey::SyncGroup => call.answer::<SyncGroupRequest>(frame, Call::sync),
        ApiKey::Heartbeat => call.answer::<HeartbeatRequest>(frame, Call::heartbeat),
        ApiKey::LeaveGroup => call.answer::<LeaveGroupRequest>(frame, Call::leave),
        other => panic!("{other:?} is not served here"),
    }
}

struct Call<'a> {
    broker: &'a Shared,
    version: i16,
    correlation: i32,
    addr: SocketAddr,
}

fn line(topic: &TopicName, partition: i32) -> Line {
    (topic.to_string(), partition)
}

impl Call<'_> {
    fn answer<R: Request>(&self, mut frame: Bytes, act: impl FnOnce(&Self, R) -> R::Response) -> Bytes {
        let request = R::decode(&mut frame, self.version).expect("a request");
        let response = act(self, request);
        let mut b = BytesMut::new();
        b.put_i32(0);
        let header = ResponseHeader::default().with_correlation_id(self.correlation);
        header.encode(&mut b, R::Response::header_version(self.version)).expect("a header");
        response.encode(&mut b, self.version).expect("a response");
        let size = b.remaining() as i32 - 4;
        b[..4].copy_from_slice(&size.to_be_bytes());
        b.freeze()
    }

    fn broker(&self) -> parking_lot::MutexGuard<'_, Broker> {
        self.broker.lock()
    }

    fn carry_out(&self, txn: &str) {
        tokio::spawn(carry_out(self.broker.clone(), txn.to_owned()));
    }

    fn metadata(&self, r: MetadataRequest) -> MetadataResponse {
        use metadata_response::{MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic};
        let me = MetadataResponseBroker::default()
            .with_node_id(1.into())
            .with_host(StrBytes::from_string(self.addr.ip().to_string()))
            .with_port(i32::from(self.addr.port()));
        let b = self.broker();
        let partition = |p| {
            MetadataResponsePartition::default()
                .with_partition_index(p)
                .with_leader_id(1.into())
                .with_leader_epoch(1)
        };
        let is_asked = |name: &str| {
            let mut names = r.topics.iter().flatten().filter_map(|t| t.name.as_ref());
            r.topics.is_none() || names.any(|n| n.as_str() == name)
        };
        let topics = b.topics.iter().filter(|(name, _)| is_asked(name)).map(|(name, (id, n))| {
            MetadataResponseTopic::default()
                .with_name(Some(TopicName(StrBytes::from_string(name.clone()))))
                .with_topic_id(*id)
                .with_partitions((0..*n).map(partition).collect())
        });
        MetadataResponse::default().with_brokers(vec![me]).with_topics(topics.collect())
    }

    fn create_topics(&self, r: CreateTopicsRequest) -> CreateTopicsResponse {
        use create_topics_response::CreatableTopicResult;
        let mut b = self.broker();
        let mut rows = Vec::new();
        for t in r.topics {
            let row = CreatableTopicResult::default().with_name(t.name.clone());
            if b.topics.contains_key(t.name.as_str()) {
                rows.push(row.with_error_code(36));
                continue;
            }
            let id = Uuid::from_u128(b.topics.len() as u128 + 1);
            b.topics.insert(t.name.to_string(), (id, t.num_partitions));
            for p in 0..t.num_partitions {
                b.logs.insert(line(&t.name, p), Default::default());
            }
            rows.push(row.with_topic_id(id));
        }
        CreateTopicsResponse::default().with_topics(rows)
    }

    fn find_coordinator(&self, _: FindCoordinatorRequest) -> FindCoordinatorResponse {
        FindCoordinatorResponse::default()
            .with_node_id(1.into())
            .with_host(StrBytes::from_string(self.addr.ip().to_string()))
            .with_port(i32::from(self.addr.port()))
    }

    fn init(&self, r: InitProducerIdRequest) -> InitProducerIdResponse {
        let mut b = self.broker();
        let Some(txn) = r.transactional_id else {
            b.next_id += 1;
            return InitProducerIdResponse::default().with_producer_id((b.next_id - 1).into());
        };
        let timeout = Duration::from_millis(r.transaction_timeout_ms as u64);
        let (answer, is_work) = b.init(&txn, timeout, (r.producer_id.0, r.producer_epoch));
        drop(b);
        if is_work {
            self.carry_out(&txn);
        }
        match answer {
            Ok((id, epoch)) => {
                InitProducerIdResponse::default().with_producer_id(id.into()).with_producer_epoch(epoch)
            }
            Err(code) => InitProducerIdResponse::default().with_error_code(code),
        }
    }

    fn add_partitions(&self, r: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse {
        use add_partitions_to_txn_response::*;
        let producer = (r.v3_and_below_producer_id.0, r.v3_and_below_producer_epoch);
        let mut b = self.broker();
        let mut topics = Vec::new();
        for t in r.v3_and_below_topics {
            let mut rows = Vec::new();
            for p in &t.partitions {
                let code = b.add(&r.v3_and_below_transactional_id, producer, Some(&line(&t.name, *p)), None);
                rows.push(
                    AddPartitionsToTxnPartitionResult::default()
                        .with_partition_index(*p)
                        .with_partition_error_code(code),
                );
            }
            topics.push(
                AddPartitionsToTxnTopicResult::default().with_name(t.name).with_results_by_partition(rows),
            );
        }
        AddPartitionsToTxnResponse::default().with_results_by_topic_v3_and_below(topics)
    }

    fn add_offsets(&self, r: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse {
        let producer = (r.producer_id.0, r.producer_epoch);
        let code = self.broker().add(&r.transactional_id, producer, None, Some(&r.group_id));
        AddOffsetsToTxnResponse::default().with_error_code(code)
    }

    fn txn_offset_commit(&self, r: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse {
        use txn_offset_commit_response::*;
        let mut offsets = Vec::new();
        for t in &r.topics {
            for p in &t.partitions {
                let metadata = p.committed_metadata.as_ref().map_or(String::new(), |m| m.to_string());
                offsets.push((line(&t.name, p.partition_index), p.committed_offset, metadata));
            }
        }
        let adds = self.version >= TRANSACTIONS_2.offset_commit;
        let txn = (&*r.transactional_id.0, (r.producer_id.0, r.producer_epoch), adds);
        let code = self.broker().commit_in(txn, &r.group_id, (&r.member_id, r.generation_id), offsets);
        let topics = r.topics.into_iter().map(|t| {
            let rows = t.partitions.iter().map(|p| {
                TxnOffsetCommitResponsePartition::default()
                    .with_partition_index(p.partition_index)
                    .with_error_code(code)
            });
            TxnOffsetCommitResponseTopic::default().with_name(t.name).with_partitions(rows.collect())
        });
        TxnOffsetCommitResponse::default().with_topics(topics.collect())
    }

    fn end(&self, r: EndTxnRequest) -> EndTxnResponse {
        let producer = (r.producer_id.0, r.producer_epoch);
        let v2 = self.version >= TRANSACTIONS_2.end;
        let (answer, is_work) = self.broker().end(&r.transactional_id, producer, r.committed, v2);
        if is_work {
            self.carry_out(&r.transactional_id);
        }
        match answer {
            Ok((id, epoch)) if v2 => {
                EndTxnResponse::default().with_producer_id(id.into()).with_producer_epoch(epoch)
            }
            Ok(_) => EndTxnResponse::default(),
            Err(code) => EndTxnResponse::default().with_error_code(code),
        }
    }

    fn produce(&self, r: ProduceRequest) -> ProduceResponse {
        use produce_response::*;
        let adds = self.version >= TRANSACTIONS_2.produce;
        let mut b = self.broker();
        let mut topics = Vec::new();
        for t in r.topic_data {
            let mut rows = Vec::new();
            for p in t.partition_data {
                let bytes = p.records.unwrap_or_default();
                let txn = r.transactional_id.as_ref().map(|id| id.as_str());
                let (code, base) = match b.append(txn, &line(&t.name, p.index), &bytes, adds) {
                    Ok(base) => (0, base),
                    Err(code) => (code, -1),
                };
                rows.push(
                    PartitionProduceResponse::default()
                        .with_index(p.index)
                        .with_error_code(code)
                        .with_base_offset(base)
                        .with_log_start_offset(if code == 0 { 0 } else { -1 }),
                );
            }
            topics.push(TopicProduceResponse::default().with_name(t.name).with_partition_responses(rows));
        }
        ProduceResponse::default().with_responses(topics)
    }

    fn fetch(&self, r: FetchRequest) -> FetchResponse {
        use fetch_response::*;
        let b = self.broker();
        let is_committed = r.isolation_level == 1;
        let topics = r.topics.into_iter().map(|t| {
            let rows = t.partitions.iter().map(|p| {
                let Some(log) = b.logs.get(&line(&t.topic, p.partition)) else {
                    return PartitionData::default().with_partition_index(p.partition).with_error_code(3);
                };
                let lso = if b.flaw == Flaw::OpenIsShown { log.end() } else { log.stable_end() };
                let most = if is_committed { lso } else { log.end() };
                let mut records = BytesMut::new();
                let asked = log.batches.iter().filter(|(i, _)| i.end() > p.fetch_offset && i.end() <= most);
                for (_, bytes) in asked {
                    if !records.is_empty() && records.len() + bytes.len() > p.partition_max_bytes as usize {
                        break;
                    }
                    records.put_slice(bytes);
                }
                let tells = is_committed && b.flaw != Flaw::AbortedIsShown;
                let aborted = log.aborted.iter().filter(|_| tells).map(|(id, first)| {
                    AbortedTransaction::default().with_producer_id((*id).into()).with_first_offset(*first)
                });
                PartitionData::default()
                    .with_partition_index(p.partition)
                    .with_high_watermark(log.end())
                    .with_last_stable_offset(lso)
                    .with_log_start_offset(0)
                    .with_aborted_transactions(Some(still_met(log, p.fetch_offset, aborted.collect())))
                    .with_records(Some(records.freeze()))
            });
            FetchableTopicResponse::default().with_topic(t.topic.clone()).with_partitions(rows.collect())
        });
        FetchResponse::default().with_responses(topics.collect())
    }

    fn list_offsets(&self, r: ListOffsetsRequest) -> ListOffsetsResponse {
        use list_offsets_response::*;
        let b = self.broker();
        let is_committed = r.isolation_level == 1 && b.flaw != Flaw::OpenIsShown;
        let topics = r.topics.into_iter().map(|t| {
            let rows = t.partitions.iter().map(|p| {
                let log = b.logs.get(&line(&t.name, p.partition_index));
                let end = log.map_or(0, |log| if is_committed { log.stable_end() } else { log.end() });
                ListOffsetsPartitionResponse::default()
                    .with_partition_index(p.partition_index)
                    .with_offset(if p.timestamp == -2 { 0 } else { end })
            });
            ListOffsetsTopicResponse::default().with_name(t.name.clone()).with_partitions(rows.collect())
        });
        ListOffsetsResponse::default().with_topics(topics.collect())
    }

    fn offset_commit(&self, r: OffsetCommitRequest) -> OffsetCommitResponse {
        use offset_commit_response::*;
        let mut b = self.broker();
        let group = b.groups.entry(r.group_id.to_string()).or_default();
        let code = group.admits(&r.member_id, r.generation_id_or_member_epoch);
        let topics = r.topics.into_iter().map(|t| {
            let mut rows = Vec::new();
            for p in &t.partitions {
                let metadata = p.committed_metadata.as_ref().map_or(String::new(), |m| m.to_string());
                if code == 0 {
                    let offset = group.offset(p.committed_offset, metadata);
                    group.offsets.insert(line(&t.name, p.partition_index), offset);
                }
                let row = OffsetCommitResponsePartition::default().with_partition_index(p.partition_index);
                rows.push(row.with_error_code(code));
            }
            OffsetCommitResponseTopic::default().with_name(t.name).with_partitions(rows)
        });
        OffsetCommitResponse::default().with_topics(topics.collect())
    }

    fn offset_fetch(&self, r: OffsetFetchRequest) -> OffsetFetchResponse {
        use offset_fetch_response::*;
        let mut b = self.broker();
        let is_stable = r.require_stable && b.flaw != Flaw::StableIsIgnored;
        let group = b.groups.entry(r.group_id.to_string()).or_default();
        let mut topics: BTreeMap<String, Vec<OffsetFetchResponsePartition>> = BTreeMap::new();
        let pending = group.pending.values().flat_map(|p| p.keys());
        let lines: std::collections::BTreeSet<&Line> = group.offsets.keys().chain(pending).collect();
        for at in lines {
            let known = group.offsets.get(at).cloned();
            let (offset, metadata) = known.map_or((-1, String::new()), |o| (o.offset, o.metadata));
            let is_unstable = is_stable && group.is_unstable(at);
            let row = OffsetFetchResponsePartition::default()
                .with_partition_index(at.1)
                .with_committed_offset(if is_unstable { -1 } else { offset })
                .with_metadata(Some(StrBytes::from_string(metadata)))
                .with_error_code(if is_unstable { 88 } else { 0 });
            topics.entry(at.0.clone()).or_default().push(row);
        }
        let topics = topics.into_iter().map(|(name, rows)| {
            OffsetFetchResponseTopic::default()
                .with_name(TopicName(StrBytes::from_string(name)))
                .with_partitions(rows)
        });
        OffsetFetchResponse::default().with_topics(topics.collect())
    }

    fn join(&self, r: JoinGroupRequest) -> JoinGroupResponse {
        use join_group_response::JoinGroupResponseMember;
        let mut b = self.broker();
        let group = b.groups.entry(r.group_id.to_string()).or_default();
        group.generation += 1;
        group.member = match r.member_id.as_str() {
            "" => format!("member-{}", group.generation),
            known => known.to_owned(),
        };
        let member = StrBytes::from_string(group.member.clone());
        let protocol = r.protocols.into_iter().next().unwrap_or_default();
        let row = JoinGroupResponseMember::default()
            .with_member_id(member.clone())
            .with_metadata(protocol.metadata);
        JoinGroupResponse::default()
            .with_generation_id(group.generation)
            .with_protocol_type(Some(r.protocol_type))
            .with_protocol_name(Some(protocol.name))
            .with_leader(member.clone())
            .with_member_id(member)
            .with_members(vec![row])
    }

    fn sync(&self, r: SyncGroupRequest) -> SyncGroupResponse {
        let code = self.admits(&r.group_id, &r.member_id, r.generation_id);
        let mine = r.assignments.into_iter().find(|a| a.member_id == r.member_id);
        SyncGroupResponse::default()
            .with_error_code(code)
            .with_assignment(mine.map_or(Bytes::new(), |a| a.assignment))
    }

    fn admits(&self, group: &str, member: &str, generation: i32) -> i16 {
        self.broker().groups.entry(group.to_owned()).or_default().admits(member, generation)
    }

    fn heartbeat(&self, r: HeartbeatRequest) -> HeartbeatResponse {
        HeartbeatResponse::default().with_error_code(self.admits(&r.group_id, &r.member_id, r.generation_id))
    }

    fn leave(&self, r: LeaveGroupRequest) -> LeaveGroupResponse {
        use leave_group_response::MemberResponse;
        let mut b = self.broker();
        let group = b.groups.entry(r.group_id.to_string()).or_default();
        let is_member = r.members.iter().any(|m| m.member_id.as_str() == group.member);
        if is_member {
            (group.member, group.generation) = (String::new(), group.generation + 1);
        }
        let row = MemberResponse::default().with_error_code(if is_member { 0 } else { 25 });
        LeaveGroupResponse::default().with_members(vec![row])
    }
}

/// Of the aborted transactions, those of which anything lies at or past `from`.
fn still_met(
    log: &super::logs::Log,
    from: i64,
    aborted: Vec<fetch_response::AbortedTransaction>,
) -> Vec<fetch_response::AbortedTransaction> {
    let ends_past = |a: &fetch_response::AbortedTransaction| {
        let markers = log.batches.iter().filter(|(b, _)| b.is_control() && b.producer_id == a.producer_id.0);
        let ends = markers.map(|(b, _)| b.base).find(|base| *base > a.first_offset);
        ends.is_none_or(|end| end >= from)
    };
    aborted.into_iter().filter(ends_past).collect()
}
