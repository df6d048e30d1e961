import assert from "node:assert/strict";
import { test } from "node:test";
import { ago, coldReason, duration, exact, labels, memory, mib, money, ms, reasons, span, words } from "../src/format.ts";

test("sizes and times read as people write them", () => {
  assert.deepEqual([0, 512, 1024, 1536, 16384, 1572864].map(mib), ["0 MiB", "512 MiB", "1 GiB", "1.5 GiB", "16 GiB", "1.5 TiB"]);
  assert.deepEqual([7, 870, 910, 9949, 9951, 41_000, 125_000].map(ms), ["7 ms", "0.9 s", "0.9 s", "9.9 s", "10 s", "41 s", "2 min 5 s"]);
  assert.deepEqual([0, 59_400, 60_000, 3_600_000, 5_400_000, 86_400_000, 90_000_000, 700_000_000].map(span), ["0 s", "59 s", "1 min", "1 h", "1 h 30 min", "1 d", "1 d 1 h", "8 d"]);
  assert.deepEqual([ago(1000, 1500), ago(0, 60_000), ago(0, 100_000), ago(7_140_000, 0), ago(0, 7 * 86_400_000)], ["just now", "60 s ago", "2 min ago", "in 2 h", "7 d ago"]);
  assert.deepEqual([money(1_234_567_890, "EUR"), money(-10_000, null)], ["1,234.57 EUR", "-0.01"]);
});

test("what is typed is read, or refused", () => {
  assert.deepEqual(["90", "90s", "15m", "15min", "2h", "1d12h", " 1 D ", "", "2x", "h", "-1h", "1h foo"].map(duration), [90, 90, 900, 900, 7200, 129600, 86400, null, null, null, null, null]);
  assert.deepEqual(["512", "512M", "16G", "16GiB", "1.5g", "1t", "", "16X", "G"].map(memory), [512, 512, 16384, 16384, 1536, 1048576, null, null, null]);
  assert.deepEqual(labels("zone=lab, chip = m4,"), { zone: "lab", chip: "m4" });
  assert.deepEqual(labels(""), {});
  assert.deepEqual(labels("url=a=b"), { url: "a=b" });
  assert.equal(labels("zone"), null);
  assert.equal(labels("=lab"), null);
});

test("a time is shown as a whole, and is read back as it was", () => {
  assert.deepEqual([45, 5400, 86400, 648000, 90061].map(exact), ["45 s", "1 h 30 min", "1 d", "7 d 12 h", "1 d 1 h 1 min 1 s"]);
  for (const secs of [1, 59, 60, 3599, 9000, 86399, 604800, 366 * 86400]) assert.equal(duration(exact(secs)), secs);
});

test("a command line becomes words as a shell splits it", () => {
  assert.deepEqual(words(`sh -c 'echo "a  b"' c\\ d "" "x\\"y"`), ["sh", "-c", 'echo "a  b"', "c d", "", 'x"y']);
  assert.deepEqual(words("  "), []);
  assert.equal(words("echo 'open"), null);
});

test("reasons are words, and unknown ones are kept", () => {
  assert.equal(reasons({ memory: 2, cordoned: 1, cpu: 0, novel: 1 }), "2 hosts without enough memory, 1 host cordoned, 1 host novel");
  assert.equal(reasons(undefined), "");
  assert.match(coldReason("pool_empty", "ci"), /warm pool ci had no VM ready/);
  assert.match(coldReason("cloud_init"), /cloud_init/);
  assert.match(coldReason(undefined), /no warm pool/);
});
