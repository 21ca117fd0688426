// What the programs of kafkajs share: the client, the register of checks, and the runner.
//
// kafkajs brings gzip alone. Snappy comes from kafkajs-snappy; LZ4 and Zstandard are plugged in
// here over packages that need no compiler.

const assert = require('assert');
const crypto = require('crypto');
const {
  Kafka,
  CompressionTypes,
  CompressionCodecs,
  ConfigResourceTypes,
  logLevel,
} = require('kafkajs');

CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy');
const lz4 = require('lz4-napi');
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: (encoder) => lz4.compressFrame(encoder.buffer),
  decompress: (buffer) => lz4.decompressFrame(buffer),
});
const zstd = new Promise((done) =>
  require('zstd-codec').ZstdCodec.run((codec) => done(new codec.Simple())),
);
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async (encoder) => Buffer.from((await zstd).compress(encoder.buffer)),
  decompress: async (buffer) => Buffer.from((await zstd).decompress(buffer)),
});

const address = process.argv[2] || '127.0.0.1:9092';
const only = new Set(process.argv.slice(3));
const target = process.env.CONFORMANCE_TARGET || 'highwater';
const kafka = new Kafka({
  clientId: 'conformance',
  brokers: [address],
  logLevel: logLevel.NOTHING,
  connectionTimeout: 10000,
});
const admin = kafka.admin();
const checks = [];
const check = (name, body, { limit = 60, onlyOn } = {}) => {
  if (!onlyOn || onlyOn === target) checks.push({ name, body, limit });
};
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

async function until(condition, seconds, what) {
  const end = Date.now() + seconds * 1000;
  for (;;) {
    const value = await condition();
    if (value) return value;
    if (Date.now() > end) throw new Error(`not within ${seconds} s: ${what}`);
    await sleep(50);
  }
}

async function create(topic, numPartitions = 1, config = {}) {
  const configEntries = Object.entries(config).map(([name, value]) => ({ name, value }));
  const made = await admin.createTopics({
    topics: [{ topic, numPartitions, replicationFactor: 1, configEntries }],
    waitForLeaders: false,
  });
  assert(made, `${topic} existed`);
  await until(async () => (await admin.listTopics()).includes(topic), 10, `${topic} is known`);
  return topic;
}

async function failsWith(promise, type) {
  try {
    await promise;
  } catch (error) {
    const groups = (error.groups || []).map((g) => g.error);
    const found = [error, error.cause, ...(error.errors || []), ...groups].filter(Boolean);
    assert(
      found.some((e) => e.type === type),
      `wanted ${type}, got ${found.map((e) => `${e.type} ${e.message}`)}`,
    );
    return;
  }
  throw new Error(`succeeded, wanted ${type}`);
}

async function withProducer(config, body) {
  const producer = kafka.producer({ allowAutoTopicCreation: false, ...config });
  await producer.connect();
  try {
    return await body(producer);
  } finally {
    await producer.disconnect();
  }
}

const produce = (topic, messages, options = {}, config = {}) =>
  withProducer(config, (p) => p.send({ topic, messages, acks: -1, ...options }));

// --- the runner ------------------------------------------------------------------------------

async function runOne({ name, body, limit }) {
  const started = Date.now();
  let timer;
  const late = new Promise((_, fail) => {
    timer = setTimeout(() => fail(new Error(`no end within ${limit} s`)), limit * 1000);
  });
  let problem;
  try {
    await Promise.race([body(), late]);
  } catch (error) {
    problem = `${error.name}: ${error.message}`;
  }
  clearTimeout(timer);
  const took = ((Date.now() - started) / 1000).toFixed(2);
  if (problem === undefined) console.log(`ok ${name} ${took}`);
  else console.log(`not ok ${name} ${took} ${problem.replace(/\s+/g, ' ').slice(0, 600)}`);
}

async function runAll() {
  await admin.connect();
  const waiting = checks.filter(({ name }) => !only.size || only.has(name));
  const worker = async () => {
    while (waiting.length) await runOne(waiting.shift());
  };
  await Promise.all(Array.from({ length: 4 }, worker));
  await admin.disconnect();
}

// Runs what is registered and ends the process, whatever still hangs.
function main() {
  runAll().then(
    () => process.exit(0),
    (error) => {
      console.error(error);
      process.exit(1);
    },
  );
}

module.exports = { address, admin, check, create, failsWith, kafka, main, produce, sleep, until, withProducer };
