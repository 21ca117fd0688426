// kafkajs's transactions on a broker that is killed where this program says: `node restarts.js ADDRESS`.

const assert = require('assert');
const readline = require('readline');
const { check, create, main, until } = require('./base');
const { commit, committed, offset, offsetsOf, send, transactor } = require('./transactions');

const input = readline.createInterface({ input: process.stdin });
const answers = input[Symbol.asyncIterator]();

// Whoever started this program kills the broker, starts it again and answers with a line. kafkajs does not try again when it is told
// that the coordinator loads: that is waited for here. The group has the name of the transactional id, hence its coordinator.
async function again(topic) {
  console.log('kill9');
  assert(!(await answers.next()).done, 'nobody restarts the broker');
  const loads = (e) => (e.type === 'GROUP_LOAD_IN_PROGRESS' ? null : Promise.reject(e));
  await until(async () => (await offset(topic, topic).catch(loads)) !== null, 10, 'the coordinator loads');
}

check(
  'txn_survives_kill9',
  async () => {
    const topic = await create('kafkajs-restarts');
    const producer = await transactor(topic, { retry: { retries: 30, maxRetryTime: 2000 } });
    await commit(producer, topic, 'before');
    await again(topic); // between transactions
    let transaction = await producer.transaction();
    await send(transaction, topic, ['begun']);
    await again(topic); // in one that commits
    await send(transaction, topic, ['went on']);
    await transaction.commit();
    await again(topic); // right after its commit
    transaction = await producer.transaction();
    await send(transaction, topic, ['given up']);
    await again(topic); // in one that aborts
    await transaction.abort();
    transaction = await producer.transaction();
    await send(transaction, topic, ['with offsets']);
    await transaction.sendOffsets(offsetsOf(topic, topic, 5));
    await again(topic); // while offsets are pending
    assert.strictEqual(await offset(topic, topic), -1, "the group's offset while pending");
    await transaction.commit();
    await until(async () => (await offset(topic, topic)) === 5, 10, 'the offset follows');
    assert.deepStrictEqual(await committed(topic), ['before', 'begun', 'went on', 'with offsets']);
    await producer.disconnect();
  },
  { limit: 230 },
);

main();
