package main

import (
	"crypto/rand"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

func (c *t) wantErr(err error, wanted error) {
	if !errors.Is(err, wanted) {
		c.fail("got %v, wanted %v", err, wanted)
	}
}

func (c *t) config(admin *kadm.Client, topic, key string) string {
	found, err := admin.DescribeTopicConfigs(c.ctx, topic)
	c.must(err)
	on, err := found.On(topic, nil)
	c.must(err)
	c.must(on.Err)
	for _, entry := range on.Configs {
		if entry.Key == key {
			return entry.MaybeValue()
		}
	}
	c.fail("no %s in the description", key)
	return ""
}

var adminChecks = []check{
	{name: "topic_create", body: func(c *t) {
		topic := c.create("franz-create", 3)
		admin := c.admin()
		defer admin.Close()
		found, err := admin.ListTopics(c.ctx, topic)
		c.must(err)
		same(c, len(found[topic].Partitions), 3, "partitions")
		if found[topic].ID == (kadm.TopicID{}) {
			c.fail("no topic id")
		}
		for _, p := range found[topic].Partitions {
			same(c, p.Replicas, []int32{p.Leader}, "replicas")
			same(c, p.ISR, []int32{p.Leader}, "in-sync replicas")
		}
	}},
	{name: "topic_create_default_partitions", body: func(c *t) {
		admin := c.admin()
		defer admin.Close()
		_, err := admin.CreateTopic(c.ctx, -1, -1, nil, "franz-defaults")
		c.must(err)
	}},
	{name: "topic_create_again_refused", body: func(c *t) {
		c.create("franz-twice", 1)
		admin := c.admin()
		defer admin.Close()
		_, err := admin.CreateTopic(c.ctx, 1, 1, nil, "franz-twice")
		c.wantErr(err, kerr.TopicAlreadyExists)
	}},
	{name: "topic_create_bad_replication_refused", body: func(c *t) {
		admin := c.admin()
		defer admin.Close()
		_, err := admin.CreateTopic(c.ctx, 1, 3, nil, "franz-rf3")
		c.wantErr(err, kerr.InvalidReplicationFactor)
	}},
	{name: "topic_create_bad_partitions_refused", body: func(c *t) {
		admin := c.admin()
		defer admin.Close()
		_, err := admin.CreateTopic(c.ctx, 0, 1, nil, "franz-none")
		c.wantErr(err, kerr.InvalidPartitions)
	}},
	{name: "topic_create_validate_only", body: func(c *t) {
		admin := c.admin()
		defer admin.Close()
		found, err := admin.ValidateCreateTopics(c.ctx, 2, 1, nil, "franz-dry")
		c.must(err)
		c.must(found["franz-dry"].Err)
		topics, err := admin.ListTopics(c.ctx)
		c.must(err)
		if topics.Has("franz-dry") {
			c.fail("it was created")
		}
	}},
	{name: "topic_alter_config", body: func(c *t) {
		topic := c.create("franz-config", 1, "max.message.bytes", "5000")
		admin := c.admin()
		defer admin.Close()
		value := "7200000"
		answer, err := admin.AlterTopicConfigs(c.ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &value}}, topic)
		c.must(err)
		c.must(answer[0].Err)
		c.until(5*time.Second, "set", func() bool { return c.config(admin, topic, "retention.ms") == value })
		same(c, c.config(admin, topic, "max.message.bytes"), "5000", "the other")
		answer, err = admin.AlterTopicConfigs(c.ctx, []kadm.AlterConfig{{Op: kadm.DeleteConfig, Name: "retention.ms"}}, topic)
		c.must(err)
		c.must(answer[0].Err)
		c.until(5*time.Second, "deleted", func() bool { return c.config(admin, topic, "retention.ms") == "604800000" })
	}},
	{name: "topic_alter_config_append_subtract", body: func(c *t) {
		topic := c.create("franz-config-list", 1)
		admin := c.admin()
		defer admin.Close()
		value := "compact"
		for _, step := range []struct {
			op     kadm.IncrementalOp
			wanted string
		}{{kadm.AppendConfig, "delete,compact"}, {kadm.SubtractConfig, "delete"}} {
			answer, err := admin.AlterTopicConfigs(c.ctx, []kadm.AlterConfig{{Op: step.op, Name: "cleanup.policy", Value: &value}}, topic)
			c.must(err)
			c.must(answer[0].Err)
			c.until(5*time.Second, step.wanted, func() bool { return c.config(admin, topic, "cleanup.policy") == step.wanted })
		}
	}},
	{name: "topic_alter_config_bad_refused", body: func(c *t) {
		topic := c.create("franz-config-bad", 1)
		admin := c.admin()
		defer admin.Close()
		value := "soon"
		for _, name := range []string{"retention.ms", "no.such.key"} {
			answer, err := admin.AlterTopicConfigs(c.ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: name, Value: &value}}, topic)
			c.must(err)
			c.wantErr(answer[0].Err, kerr.InvalidConfig)
		}
		same(c, c.config(admin, topic, "retention.ms"), "604800000", "unchanged")
	}},
	{name: "topic_alter_config_the_old_way", body: func(c *t) {
		topic := c.create("franz-config-old", 1, "max.message.bytes", "5000")
		admin := c.admin()
		defer admin.Close()
		value := "7200000"
		answer, err := admin.AlterTopicConfigsState(c.ctx, []kadm.AlterConfig{{Name: "retention.ms", Value: &value}}, topic)
		c.must(err)
		c.must(answer[0].Err)
		c.until(5*time.Second, "set", func() bool { return c.config(admin, topic, "retention.ms") == value })
		same(c, c.config(admin, topic, "max.message.bytes"), "1048588", "what was left out reverts")
	}},
	{name: "topic_list_delete", body: func(c *t) {
		topic := c.create("franz-delete", 2)
		c.produceValues(topic, []string{"x"})
		admin := c.admin()
		defer admin.Close()
		_, err := admin.DeleteTopic(c.ctx, topic)
		c.must(err)
		c.until(10*time.Second, "gone", func() bool {
			topics, err := admin.ListTopics(c.ctx)
			return err == nil && !topics.Has(topic)
		})
		_, err = admin.DeleteTopic(c.ctx, topic)
		c.wantErr(err, kerr.UnknownTopicOrPartition)
	}},
	{name: "topic_recreate_has_new_id", body: func(c *t) {
		topic := c.create("franz-recreate", 1)
		admin := c.admin()
		defer admin.Close()
		before, err := admin.ListTopics(c.ctx, topic)
		c.must(err)
		c.produceValues(topic, []string{"old"})
		_, err = admin.DeleteTopic(c.ctx, topic)
		c.must(err)
		c.until(20*time.Second, "created again", func() bool {
			_, err := admin.CreateTopic(c.ctx, 1, 1, nil, topic)
			return err == nil
		})
		c.until(10*time.Second, "a new topic id", func() bool {
			after, err := admin.ListTopics(c.ctx, topic)
			return err == nil && after[topic].Err == nil && after[topic].ID != before[topic].ID
		})
		c.produceValues(topic, []string{"new"})
		same(c, values(c.read(topic, 1)), []string{"new"}, "values")
	}},
	{name: "partitions_create", body: func(c *t) {
		topic := c.create("franz-grow", 1)
		admin := c.admin()
		defer admin.Close()
		answer, err := admin.UpdatePartitions(c.ctx, 4, topic)
		c.must(err)
		c.must(answer[topic].Err)
		c.until(10*time.Second, "four partitions", func() bool {
			topics, err := admin.ListTopics(c.ctx, topic)
			return err == nil && len(topics[topic].Partitions) == 4
		})
		answer, err = admin.UpdatePartitions(c.ctx, 2, topic)
		c.must(err)
		c.wantErr(answer[topic].Err, kerr.InvalidPartitions)
	}},
	{name: "cluster_describe", body: func(c *t) {
		admin := c.admin()
		defer admin.Close()
		found, err := admin.BrokerMetadata(c.ctx)
		c.must(err)
		same(c, len(found.Brokers), 1, "brokers")
		same(c, found.Controller, found.Brokers[0].NodeID, "controller")
		if found.Cluster == "" {
			c.fail("no cluster id")
		}
	}},
	{name: "broker_config_describe", body: func(c *t) {
		admin := c.admin()
		defer admin.Close()
		found, err := admin.BrokerMetadata(c.ctx)
		c.must(err)
		configs, err := admin.DescribeBrokerConfigs(c.ctx, found.Brokers[0].NodeID)
		c.must(err)
		for _, entry := range configs[0].Configs {
			if entry.Key == "log.segment.bytes" {
				return
			}
		}
		c.fail("no log.segment.bytes")
	}},
	{name: "api_versions", body: func(c *t) {
		admin := c.admin()
		defer admin.Close()
		found, err := admin.ApiVersions(c.ctx)
		c.must(err)
		for _, broker := range found {
			c.must(broker.Err)
			if most, ok := broker.KeyMaxVersion(0); !ok || most < 11 {
				c.fail("Produce up to %d", most)
			}
		}
	}},
	{name: "log_dirs_describe", body: func(c *t) {
		topic := c.create("franz-log-dirs", 1)
		value := make([]byte, 50_000)
		_, _ = rand.Read(value)
		c.produceValues(topic, []string{string(value)})
		admin := c.admin()
		defer admin.Close()
		found, err := admin.DescribeAllLogDirs(c.ctx, kadm.TopicsSet{topic: {0: {}}})
		c.must(err)
		var size int64
		for _, dirs := range found {
			c.must(dirs.Error())
			size += dirs.Size()
		}
		if size < 50_000 || size > 60_000 {
			c.fail("size %d", size)
		}
	}},
	{name: "partition_reassignments_none", body: func(c *t) {
		admin := c.admin()
		defer admin.Close()
		found, err := admin.ListPartitionReassignments(c.ctx, nil)
		c.must(err)
		same(c, len(found), 0, "topics being reassigned")
	}},
	{name: "topic_auto_created", body: func(c *t) {
		c.produceValues("franz-auto-created", []string{"first"}, kgo.AllowAutoTopicCreation())
		same(c, values(c.read("franz-auto-created", 1)), []string{"first"}, "values")
	}},
}
