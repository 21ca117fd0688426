// kafkajs's transactions; `checks.js` runs them. This client always pairs a transactional id with idempotence.

const assert = require('assert');
const { admin, check, create, kafka, produce, sleep, until } = require('./base');

async function transactor(transactionalId, config = {}) {
  const producer = kafka.producer({ transactionalId, idempotent: true, maxInFlightRequests: 1, ...config });
  await producer.connect();
  return producer;
}

const send = (transaction, topic, values, partition = 0) =>
  transaction.send({ topic, messages: values.map((value) => ({ value, partition })) });

async function commit(producer, topic, ...values) {
  const transaction = await producer.transaction();
  await send(transaction, topic, values);
  await transaction.commit();
}

let readers = 0;

// Reads until `enough(values)`; the client tells nobody where the last stable offset is.
async function seen(topic, enough, { readUncommitted = false, seconds = 20 } = {}) {
  const groupId = `kafkajs-seen-${process.pid}-${readers++}`;
  const consumer = kafka.consumer({ groupId, maxWaitTimeInMs: 100, readUncommitted });
  const got = [];
  await consumer.connect();
  try {
    await consumer.subscribe({ topics: [topic], fromBeginning: true });
    await consumer.run({
      autoCommit: false,
      eachMessage: async ({ message }) => got.push(message.value.toString()),
    });
    await until(() => enough(got), seconds, `enough of ${topic}, there is ${got}`);
    return got;
  } finally {
    await consumer.disconnect();
  }
}

// What is committed once no transaction is open: a record of no transaction marks the end.
async function committed(topic) {
  await produce(topic, [{ value: 'the end', partition: 0 }]);
  const got = await seen(topic, (values) => values.includes('the end'));
  return got.filter((value) => value !== 'the end');
}

async function offset(groupId, topic) {
  let found;
  await until(
    async () => {
      // After a restart the client may go by an old coordinator, and does not ask again.
      [found] = await admin.fetchOffsets({ groupId, topics: [topic] }).catch(() => []);
      return found;
    },
    20,
    "the group's offsets",
  );
  return Number(found.partitions.find((p) => p.partition === 0).offset);
}

const offsetsOf = (groupId, topic, at) => ({
  consumerGroupId: groupId,
  topics: [{ topic, partitions: [{ partition: 0, offset: String(at) }] }],
});

const checks = () => {
  check('txn_commit', async () => {
    const topic = await create('kafkajs-txn-commit');
    const producer = await transactor(topic);
    const transaction = await producer.transaction();
    await send(transaction, topic, ['a', 'b']);
    const open = await seen(topic, (v) => v.length >= 2, { readUncommitted: true });
    assert.deepStrictEqual(open, ['a', 'b'], 'uncommitted before the commit');
    const started = Date.now();
    const none = await seen(topic, (v) => v.length || Date.now() - started > 4000);
    assert.deepStrictEqual(none, [], 'committed before the commit');
    await transaction.commit();
    assert.deepStrictEqual(await committed(topic), ['a', 'b']);
    await producer.disconnect();
  });

  check('txn_abort', async () => {
    const topic = await create('kafkajs-txn-abort');
    const producer = await transactor(topic);
    const transaction = await producer.transaction();
    await send(transaction, topic, ['no']);
    await transaction.abort();
    await commit(producer, topic, 'yes');
    assert.deepStrictEqual(await committed(topic), ['yes']);
    const all = await seen(topic, (v) => v.length >= 3, { readUncommitted: true });
    assert.deepStrictEqual(all, ['no', 'yes', 'the end'], 'uncommitted');
    await producer.disconnect();
  });

  check('txn_empty', async () => {
    const topic = await create('kafkajs-txn-empty');
    const producer = await transactor(topic);
    await (await producer.transaction()).commit();
    await (await producer.transaction()).abort();
    await commit(producer, topic, 'x');
    assert.deepStrictEqual(await committed(topic), ['x']);
    await producer.disconnect();
  });

  check('txn_many_topics_and_partitions', async () => {
    const topics = [await create('kafkajs-txn-many-a', 3), await create('kafkajs-txn-many-b', 3)];
    const producer = await transactor('kafkajs-txn-many');
    for (const end of ['abort', 'commit']) {
      const transaction = await producer.transaction();
      for (let partition = 0; partition < 3; partition++) {
        for (const topic of topics) {
          await send(transaction, topic, Array.from({ length: 50 }, (_, i) => `${end} ${partition} ${i}`), partition);
        }
      }
      await transaction[end]();
    }
    for (const topic of topics) {
      const got = await seen(topic, (v) => v.length >= 150);
      const wanted = [0, 1, 2].flatMap((p) => Array.from({ length: 50 }, (_, i) => `commit ${p} ${i}`));
      assert.deepStrictEqual(got.sort(), wanted.sort(), topic);
    }
    await producer.disconnect();
  });

  check('txn_zombie_fenced', async () => {
    const topic = await create('kafkajs-txn-zombie');
    const old = await transactor(topic, { retry: { retries: 2 } });
    const transaction = await old.transaction();
    await send(transaction, topic, ['of the zombie']);
    const young = await transactor(topic);
    await commit(young, topic, 'of the successor');
    await assert.rejects(transaction.commit(), (e) => /EPOCH|FENCED/.test(`${e.type} ${e.cause && e.cause.type}`));
    assert.deepStrictEqual(await committed(topic), ['of the successor']);
    await Promise.all([old.disconnect(), young.disconnect()]);
  });

  check(
    'case_50_timeout_aborts',
    async () => {
      const topic = await create('kafkajs-txn-timeout');
      const producer = await transactor(topic, { transactionTimeout: 1500, retry: { retries: 2 } });
      const transaction = await producer.transaction();
      await send(transaction, topic, ['too slow']);
      await produce(topic, [{ value: 'behind', partition: 0 }]);
      assert.deepStrictEqual(await seen(topic, (v) => v.length, { seconds: 40 }), ['behind']);
      await assert.rejects(transaction.commit(), 'a transaction that timed out was committed');
      await producer.disconnect();
    },
    { limit: 90 },
  );

  check('txn_offsets_follow_the_outcome', async () => {
    const topic = await create('kafkajs-txn-offsets');
    const producer = await transactor(topic);
    for (const [end, at] of [['commit', 5], ['abort', 9]]) {
      const before = await offset(topic, topic);
      const transaction = await producer.transaction();
      await transaction.sendOffsets(offsetsOf(topic, topic, at));
      assert.strictEqual(await offset(topic, topic), before, 'while pending');
      await transaction[end]();
      await until(async () => (await offset(topic, topic)) === 5, 10, 'the offset follows');
    }
    await producer.disconnect();
  });

  check(
    'txn_consume_transform_produce',
    async () => {
      const from = await create('kafkajs-txn-from');
      const to = await create('kafkajs-txn-to');
      const wanted = Array.from({ length: 40 }, (_, i) => `value ${i}`);
      for (let i = 0; i < 40; i += 5) {
        await produce(from, wanted.slice(i, i + 5).map((value) => ({ value, partition: 0 })));
      }
      const producer = await transactor('kafkajs-txn-group');
      let moved = 0;
      for (const upTo of [20, 40]) {
        const consumer = kafka.consumer({ groupId: 'kafkajs-txn-group', maxWaitTimeInMs: 100, maxBytes: 200 });
        await consumer.connect();
        await consumer.subscribe({ topics: [from], fromBeginning: true });
        let rounds = 0;
        await consumer.run({
          autoCommit: false,
          eachBatchAutoResolve: false,
          eachBatch: async ({ batch, resolveOffset }) => {
            if (moved >= upTo) return;
            const transaction = await producer.transaction();
            await send(transaction, to, batch.messages.map((m) => m.value.toString()));
            const next = Number(batch.lastOffset()) + 1;
            await transaction.sendOffsets(offsetsOf('kafkajs-txn-group', from, next));
            if (rounds++ % 3 === 2) {
              await transaction.abort(); // the batch comes again
              return;
            }
            await transaction.commit();
            moved += batch.messages.length;
            resolveOffset(batch.lastOffset());
          },
        });
        await until(() => moved >= upTo, 40, `${upTo} moved`);
        await sleep(200);
        await consumer.disconnect();
      }
      await producer.disconnect();
      assert.deepStrictEqual(await committed(to), wanted);
    },
    { limit: 120 },
  );
};

module.exports = { checks, commit, committed, offset, offsetsOf, send, transactor };
