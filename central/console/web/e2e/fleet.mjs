// A real fleet for the browser: fluxvm-agent dev with simulated VMs, each replica and host a process of its own.
import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

const root = new URL("../../../../", import.meta.url).pathname;

export const pause = (ms) => new Promise((done) => setTimeout(done, ms));

/** Asks until the answer is truthy. */
export async function eventually(what, ask, seconds = 60) {
  const end = Date.now() + seconds * 1000;
  let last;
  for (;;) {
    try {
      const got = await ask();
      if (got) return got;
      last = got;
    } catch (e) {
      last = e;
    }
    if (Date.now() > end) throw new Error(`waited ${seconds} s for ${what}; the last answer was ${last}`);
    await pause(100);
  }
}

export async function startFleet({ replicas = 3, nodes = 3, macs = 1, processes = true, env = {} } = {}) {
  const agent = join(root, "build/bin/fluxvm-agent");
  if (!existsSync(agent)) throw new Error(`${agent} is missing: run make console build`);
  const data = mkdtempSync(join(tmpdir(), "fluxvm-console-"));
  const args = ["dev", "--backend", "sim", "--replicas", replicas, "--nodes", nodes, "--macs", macs, "--listen", "127.0.0.1:0", "--data", data];
  let out = "";
  const dev = spawn(agent, [...args.map(String), ...(processes ? ["--processes"] : [])], { stdio: ["ignore", "pipe", "pipe"], env: { ...process.env, ...env } });
  dev.stdout.on("data", (d) => (out += d));
  dev.stderr.on("data", (d) => (out += d));
  const ended = new Promise((done) => dev.on("exit", done));
  try {
    await eventually("the fleet to be up", () => {
      if (dev.exitCode !== null) throw new Error(out);
      return existsSync(join(data, "env"));
    });
  } catch (e) {
    dev.kill("SIGKILL");
    throw new Error(`${e.message}\n${out}`);
  }
  const text = readFileSync(join(data, "env"), "utf8");
  const value = (name) => new RegExp(`${name}=(\\S+)`).exec(text)[1];
  const fleet = {
    token: value("FLUXVM_TOKEN"),
    urls: value("FLUXVM_REPLICA_URLS").split(","),
    pids: () => Object.fromEntries(readFileSync(join(data, "pids"), "utf8").trim().split("\n").map((l) => l.split(" "))),
    /** A call of the API, as the operator unless told otherwise. It goes to the first replica that answers. */
    async api(method, path, body, token = fleet.token) {
      let failure;
      for (const url of fleet.urls) {
        try {
          const resp = await fetch(url + path, { method, headers: { Authorization: `Bearer ${token}` }, body: body && JSON.stringify(body) });
          const answer = resp.status === 204 ? {} : await resp.json();
          if (!resp.ok && resp.status !== 503) throw Object.assign(new Error(`${method} ${path}: ${answer.detail}`), { status: resp.status });
          if (resp.ok) return answer;
          failure = new Error(answer.detail);
        } catch (e) {
          if (e.status) throw e;
          failure = e;
        }
      }
      throw failure;
    },
    async stop() {
      dev.kill("SIGTERM");
      await Promise.race([ended, pause(20_000)]);
      if (dev.exitCode === null) dev.kill("SIGKILL");
      rmSync(data, { recursive: true, force: true });
    },
  };
  try {
    await eventually("all hosts to be healthy", async () => (await fleet.api("GET", "/fleet/nodes")).items.filter((n) => n.state === "healthy").length === nodes);
  } catch (e) {
    await fleet.stop();
    throw e;
  }
  return fleet;
}

export function findChromium() {
  return [process.env.CHROMIUM, "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome", "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"].find((p) => p && existsSync(p));
}

export async function startBrowser() {
  const executablePath = findChromium();
  if (!executablePath) throw new Error("no Chromium is here: install Debian's chromium, or name one in CHROMIUM");
  return chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"] });
}

/** Signs in as a person does: by typing the token. */
export async function signIn(page, url, token) {
  await page.goto(url + "/console/");
  await page.getByLabel("Token").fill(token);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("heading", { name: "Overview" }).waitFor();
}
