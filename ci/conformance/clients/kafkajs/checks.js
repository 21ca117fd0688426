// kafkajs against the broker: `node checks.js ADDRESS [NAME...]`.

const assert = require('assert');
const crypto = require('crypto');
const { CompressionTypes, ConfigResourceTypes } = require('kafkajs');
const { address, admin, check, create, failsWith, kafka, main, produce, sleep, until, withProducer } = require('./base');

let readers = 0;

// Reads until `count` messages are there, and a little longer to see that no more come.
async function read(topic, count, { seconds = 30, from } = {}) {
  const groupId = `kafkajs-reader-${process.pid}-${readers++}`;
  const consumer = kafka.consumer({ groupId, maxWaitTimeInMs: 100 });
  const got = [];
  await consumer.connect();
  try {
    await consumer.subscribe({ topics: [topic], fromBeginning: true });
    await consumer.run({
      autoCommit: false,
      eachMessage: async ({ partition, message }) => got.push({ partition, ...message }),
    });
    if (from !== undefined) consumer.seek({ topic, partition: 0, offset: String(from) });
    await until(() => got.length >= count, seconds, `${count} messages of ${topic}`);
    await sleep(200);
    assert.equal(got.length, count, 'messages read');
    return got;
  } finally {
    await consumer.disconnect();
  }
}

const text = (messages) => messages.map((m) => m.value.toString());
const lines = (count) =>
  Array.from({ length: count }, (_, i) => `value ${i} ${'highwater '.repeat(90)}`);

// --- topics ----------------------------------------------------------------------------------

check('topic_create', async () => {
  const topic = await create('kafkajs-create', 3);
  const { topics } = await admin.fetchTopicMetadata({ topics: [topic] });
  assert.equal(topics[0].partitions.length, 3);
});

check('topic_create_again_refused', async () => {
  await create('kafkajs-twice');
  const again = await admin.createTopics({ topics: [{ topic: 'kafkajs-twice', replicationFactor: 1 }] });
  assert.equal(again, false); // so this client says that it existed
});

check('topic_create_bad_replication_refused', async () => {
  const topics = [{ topic: 'kafkajs-rf3', numPartitions: 1, replicationFactor: 3 }];
  await failsWith(admin.createTopics({ topics }), 'INVALID_REPLICATION_FACTOR');
});

check('topic_list', async () => {
  await create('kafkajs-list');
  await until(async () => (await admin.listTopics()).includes('kafkajs-list'), 5, 'listed');
});

check('topic_alter_config', async () => {
  const topic = await create('kafkajs-config', 1, { 'max.message.bytes': '5000' });
  const value = async (name) => {
    const resources = [{ type: ConfigResourceTypes.TOPIC, name: topic, configNames: [name] }];
    const answer = await admin.describeConfigs({ resources });
    return answer.resources[0].configEntries.find((e) => e.configName === name).configValue;
  };
  assert.equal(await value('max.message.bytes'), '5000');
  const configEntries = [{ name: 'retention.ms', value: '7200000' }];
  await admin.alterConfigs({
    resources: [{ type: ConfigResourceTypes.TOPIC, name: topic, configEntries }],
  });
  await until(async () => (await value('retention.ms')) === '7200000', 5, 'set');
  assert.equal(await value('max.message.bytes'), '1048588'); // left out, so it reverts
});

check('topic_delete', async () => {
  const topic = await create('kafkajs-delete');
  await admin.deleteTopics({ topics: [topic] });
  await until(async () => !(await admin.listTopics()).includes(topic), 10, 'gone');
  const impatient = kafka.admin({ retry: { retries: 0 } });
  await impatient.connect();
  await failsWith(impatient.deleteTopics({ topics: [topic] }), 'UNKNOWN_TOPIC_OR_PARTITION');
  await impatient.disconnect();
});

check('partitions_create', async () => {
  const topic = await create('kafkajs-grow');
  await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] });
  await until(
    async () =>
      (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length === 3,
    10,
    'three partitions',
  );
  await produce(topic, [{ value: 'x', partition: 2 }]);
});

check('cluster_describe', async () => {
  const { brokers, controller, clusterId } = await admin.describeCluster();
  assert.equal(brokers.length, 1);
  assert.equal(`${brokers[0].host}:${brokers[0].port}`, address);
  assert.equal(controller, brokers[0].nodeId);
  assert(clusterId);
});

check('topic_auto_created', async () => {
  const config = { allowAutoTopicCreation: true };
  await produce('kafkajs-auto-created', [{ value: 'first' }], {}, config);
  assert.deepEqual(text(await read('kafkajs-auto-created', 1)), ['first']);
});

// --- records ---------------------------------------------------------------------------------

for (const [name, compression] of Object.entries(CompressionTypes)) {
  check(`codec_${name.toLowerCase()}`, async () => {
    const topic = await create(`kafkajs-codec-${name.toLowerCase()}`);
    const values = lines(300);
    await produce(topic, values.map((value) => ({ value })), { compression });
    assert.deepEqual(text(await read(topic, 300)), values);
  });
}

check('keys_headers_nulls_timestamps', async () => {
  const topic = await create('kafkajs-fields');
  const when = 1600000000000;
  await produce(topic, [
    { key: 'k', value: 'v', headers: { h1: ['a', 'b'], empty: '' }, timestamp: String(when) },
    { key: null, value: 'keyless', timestamp: String(when + 1) },
    { key: 'tombstone', value: null, timestamp: String(when + 2) },
  ]);
  const [first, second, third] = await read(topic, 3);
  assert.deepEqual([first.key.toString(), first.value.toString()], ['k', 'v']);
  assert.deepEqual(first.headers.h1.map(String), ['a', 'b']);
  assert.equal(first.headers.empty.toString(), '');
  assert.deepEqual([second.key, second.value.toString()], [null, 'keyless']);
  assert.deepEqual([third.key.toString(), third.value], ['tombstone', null]);
  assert.deepEqual(
    [first, second, third].map((m) => Number(m.timestamp)),
    [when, when + 1, when + 2],
  );
});

check('large_message', async () => {
  const topic = await create('kafkajs-large');
  const value = crypto.randomBytes(950000);
  await produce(topic, [{ value }]);
  assert((await read(topic, 1))[0].value.equals(value));
});

check('too_large_refused', async () => {
  const topic = await create('kafkajs-too-large', 1, { 'max.message.bytes': '1000' });
  await failsWith(
    produce(topic, [{ value: crypto.randomBytes(5000) }], {}, { retry: { retries: 0 } }),
    'MESSAGE_TOO_LARGE',
  );
});

check('idempotent_producer', async () => {
  const topic = await create('kafkajs-idempotent', 3);
  const values = Array.from({ length: 600 }, (_, i) => `value ${i}`);
  await withProducer({ idempotent: true, maxInFlightRequests: 1 }, async (producer) => {
    for (let i = 0; i < values.length; i += 50) {
      const messages = values.slice(i, i + 50).map((value) => ({ key: value, value }));
      await producer.send({ topic, messages, acks: -1 });
    }
  });
  assert.deepEqual(text(await read(topic, 600)).sort(), values.sort());
});

check('acks_zero_and_one', async () => {
  const topic = await create('kafkajs-acks');
  await produce(topic, [{ value: 'acks 0' }], { acks: 0 });
  await produce(topic, [{ value: 'acks 1' }], { acks: 1 });
  assert.deepEqual(text(await read(topic, 2)).sort(), ['acks 0', 'acks 1']);
});

check('offsets_earliest_latest', async () => {
  const topic = await create('kafkajs-watermarks');
  await produce(topic, Array(7).fill({ value: 'x' }));
  const [found] = await admin.fetchTopicOffsets(topic);
  assert.deepEqual([found.low, found.high], ['0', '7']);
});

check('offsets_for_times', async () => {
  const topic = await create('kafkajs-times');
  for (const timestamp of ['2000', '4000', '6000', '8000']) {
    await produce(topic, [{ value: 'x', timestamp }]);
  }
  const at = async (time) => (await admin.fetchTopicOffsetsByTimestamp(topic, time))[0].offset;
  assert.deepEqual([await at(1), await at(3000), await at(8000)], ['0', '1', '3']);
  assert.equal(await at(9000), '4'); // this client turns "none" into the end
});

check('delete_records', async () => {
  const topic = await create('kafkajs-delete-records');
  await produce(topic, Array(10).fill({ value: 'x' }));
  await admin.fetchTopicOffsets(topic); // else this client does not know the leader
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '4' }] });
  assert.equal((await admin.fetchTopicOffsets(topic))[0].low, '4');
  const offsets = (await read(topic, 6)).map((m) => m.offset);
  assert.deepEqual(offsets, ['4', '5', '6', '7', '8', '9']);
});

check('long_poll_latency', async () => {
  const topic = await create('kafkajs-latency');
  const consumer = kafka.consumer({ groupId: 'kafkajs-latency', maxWaitTimeInMs: 5000 });
  const got = [];
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  await consumer.run({ eachMessage: async ({ message }) => got.push(message) });
  try {
    await withProducer({}, async (producer) => {
      await producer.send({ topic, messages: [{ value: 'warm' }] });
      await until(() => got.length === 1, 20, 'the first message');
      const took = [];
      for (let i = 0; i < 3; i++) {
        await sleep(500);
        const started = Date.now();
        await producer.send({ topic, messages: [{ value: 'now' }] });
        await until(() => got.length === i + 2, 8, 'the message');
        took.push(Date.now() - started);
      }
      assert(took.sort((a, b) => a - b)[1] < 500, `ms until a waiting consumer had it: ${took}`);
    });
  } finally {
    await consumer.disconnect();
  }
});

// --- groups ----------------------------------------------------------------------------------

class Member {
  constructor(groupId, topic) {
    this.topic = topic;
    this.owned = [];
    this.values = [];
    this.consumer = kafka.consumer({
      groupId,
      sessionTimeout: 10000,
      heartbeatInterval: 500,
      maxWaitTimeInMs: 200,
    });
    const events = this.consumer.events;
    this.consumer.on(events.GROUP_JOIN, ({ payload }) => {
      this.owned = payload.memberAssignment[topic] || [];
    });
    this.consumer.on(events.REBALANCING, () => {
      this.owned = [];
    });
  }

  async start() {
    await this.consumer.connect();
    await this.consumer.subscribe({ topics: [this.topic], fromBeginning: true });
    await this.consumer.run({
      eachMessage: async ({ message }) => this.values.push(message.value.toString()),
    });
    return this;
  }

  stop() {
    return this.consumer.disconnect();
  }
}

const shares = (members, wanted) =>
  until(
    () => members.map((m) => m.owned.length).sort().join() === wanted.join(),
    40,
    `shares ${wanted}`,
  );

check(
  'group_two_members_rebalance',
  async () => {
    const topic = await create('kafkajs-group-two', 4);
    const values = Array.from({ length: 100 }, (_, i) => `value ${i}`);
    const a = await new Member('kafkajs-two', topic).start();
    await shares([a], [4]);
    const b = await new Member('kafkajs-two', topic).start();
    await shares([a, b], [2, 2]);
    await produce(topic, values.map((value, i) => ({ value, partition: i % 4 })));
    await until(() => a.values.length + b.values.length >= 100, 30, 'all read');
    assert.deepEqual([...a.values, ...b.values].sort(), values.sort());
    assert(a.values.length && b.values.length);
    await b.stop();
    await shares([a], [4]);
    await a.stop();
  },
  { limit: 120 },
);

check('group_commit_resume', async () => {
  const topic = await create('kafkajs-resume');
  const groupId = 'kafkajs-resume';
  await produce(topic, Array.from({ length: 10 }, (_, i) => ({ value: String(i) })));
  const first = kafka.consumer({ groupId });
  const seen = [];
  await first.connect();
  await first.subscribe({ topics: [topic], fromBeginning: true });
  await first.run({
    autoCommit: false,
    eachMessage: async ({ message }) => seen.push(message.offset),
  });
  await until(() => seen.length === 10, 30, 'all read');
  await first.commitOffsets([{ topic, partition: 0, offset: '6', metadata: 'six' }]);
  await first.disconnect();
  const [found] = await admin.fetchOffsets({ groupId, topics: [topic] });
  assert.deepEqual([found.partitions[0].offset, found.partitions[0].metadata], ['6', 'six']);
  const second = await new Member(groupId, topic).start();
  await until(() => second.values.length >= 4, 30, 'the rest read');
  await second.stop();
  assert.deepEqual(second.values, ['6', '7', '8', '9']);
});

check('group_list_describe', async () => {
  const topic = await create('kafkajs-gdescribe', 2);
  const member = await new Member('kafkajs-gdescribe', topic).start();
  await shares([member], [2]);
  const { groups } = await admin.listGroups();
  assert(groups.some((g) => g.groupId === 'kafkajs-gdescribe' && g.protocolType === 'consumer'));
  const found = (await admin.describeGroups(['kafkajs-gdescribe'])).groups[0];
  assert.deepEqual([found.state, found.members.length], ['Stable', 1]);
  assert.equal(found.members[0].clientId, 'conformance');
  await member.stop();
});

check('group_offsets_set_reset', async () => {
  const topic = await create('kafkajs-galter', 2);
  const groupId = 'kafkajs-galter';
  await produce(topic, Array(9).fill({ value: 'x', partition: 0 }));
  const at = async () => {
    const [found] = await admin.fetchOffsets({ groupId, topics: [topic] });
    return found.partitions.sort((a, b) => a.partition - b.partition).map((p) => p.offset);
  };
  await admin.setOffsets({
    groupId,
    topic,
    partitions: [
      { partition: 0, offset: '3' },
      { partition: 1, offset: '0' },
    ],
  });
  assert.deepEqual(await at(), ['3', '0']);
  await admin.resetOffsets({ groupId, topic, earliest: false });
  const [found] = await admin.fetchOffsets({ groupId, topics: [topic], resolveOffsets: true });
  const resolved = found.partitions.sort((a, b) => a.partition - b.partition);
  assert.deepEqual(resolved.map((p) => p.offset), ['9', '0']);
});

check('group_delete', async () => {
  const topic = await create('kafkajs-gdelete');
  const member = await new Member('kafkajs-gdelete', topic).start();
  await shares([member], [1]);
  await failsWith(admin.deleteGroups(['kafkajs-gdelete']), 'NON_EMPTY_GROUP');
  await member.consumer.commitOffsets([{ topic, partition: 0, offset: '0' }]);
  await member.stop();
  await admin.deleteGroups(['kafkajs-gdelete']);
  const { groups } = await admin.listGroups();
  assert(!groups.some((g) => g.groupId === 'kafkajs-gdelete'));
});

require('./transactions').checks();
main();
