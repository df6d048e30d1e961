// The console in headless Chromium against a real fleet: what a person does, and what the page says.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, before, test } from "node:test";
import { eventually, signIn, startBrowser, startFleet } from "./fleet.mjs";
import { fill, pages } from "./sample.mjs";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

let fleet, browser, tenant;
before(async () => {
  fleet = await startFleet({ env: { FLUXVM_WARM_POOL_INTERVAL_SECS: "1" } });
  browser = await startBrowser();
  tenant = (await fill(fleet)).tenant;
});
after(async () => {
  await browser?.close();
  await fleet?.stop();
});

/** A browser window that watches what the page asks for. Whatever a policy refuses, and any error, fails the test. */
async function open(t, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(60_000);
  const seen = { urls: [], errors: [] };
  page.on("request", (r) => seen.urls.push(r.url()));
  page.on("pageerror", (e) => seen.errors.push(String(e)));
  page.on("console", (m) => m.type() === "error" && !/Failed to load resource|net::ERR/.test(m.text()) && seen.errors.push(m.text()));
  t.after(() => context.close());
  return { page, seen };
}

/** Nothing else was spoken to, no token was in an address, nothing was refused by the policy. */
function clean(seen, url, token) {
  assert.deepEqual(seen.errors, []);
  for (const u of seen.urls) {
    assert.ok(u.startsWith(url + "/"), `the page asked for ${u}`);
    assert.ok(!u.includes(token) && !u.includes("fvx_"), `a token is in ${u}`);
  }
}

const go = (page, hash) => page.evaluate((to) => void (location.hash = to), hash);
const heading = (page, name) => page.getByRole("heading", { name, level: 1, exact: true }).waitFor();
const card = (page, name) => page.getByRole("article", { name: `Warm pool ${name}` });

test("a wrong token is refused in the API's words, and a right one stays in this tab only", async (t) => {
  const { page, seen } = await open(t);
  await page.goto(fleet.urls[0] + "/");
  assert.equal(page.url(), fleet.urls[0] + "/console/");
  await page.getByLabel("Token").fill("fvx_guess");
  await page.keyboard.press("Enter");
  await page.getByText("the token is not known here").waitFor();
  await page.getByLabel("Token").fill(fleet.token);
  await page.keyboard.press("Enter");
  await heading(page, "Overview");
  await page.getByText("Live", { exact: true }).waitFor();
  assert.deepEqual(await page.evaluate(() => [Object.keys(localStorage).length, document.cookie, Object.values(sessionStorage)]), [0, "", [fleet.token]]);
  await page.reload();
  await heading(page, "Overview");
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByLabel("Token").waitFor();
  assert.equal(await page.evaluate(() => sessionStorage.length), 0);
  clean(seen, fleet.urls[0], fleet.token);
});

test("an operator makes a pool, sees it fill, launches from it and steers it", async (t) => {
  const { page, seen } = await open(t);
  await signIn(page, fleet.urls[0], fleet.token);
  await page.getByRole("link", { name: "Warm pools" }).first().click();
  await page.getByRole("button", { name: "Create pool" }).click();
  const dialog = page.getByRole("dialog", { name: "Create a warm pool" });
  await dialog.getByLabel("Image").selectOption("macos-27-xcode");
  await dialog.getByText("Apple's licence").waitFor();
  await dialog.getByLabel("Image").selectOption("debian-13");
  assert.equal(await dialog.getByText("Apple's licence").count(), 0);
  await dialog.getByLabel("Name").fill("Not A Name");
  await dialog.getByRole("button", { name: "Create pool" }).click();
  await dialog.getByRole("alert").waitFor(); // in the API's words, beside what was typed
  assert.equal(await dialog.getByLabel("Name").getAttribute("aria-invalid"), "true");
  await dialog.getByLabel("Name").fill("e2e");
  await dialog.getByLabel("Keep ready").fill("2");
  await dialog.getByRole("button", { name: "Create pool" }).click();
  await page.getByText("Created warm pool e2e").waitFor();
  const mine = card(page, "e2e");
  await mine.getByRole("img", { name: "2 ready", exact: true }).waitFor(); // watched by events, without a reload

  await mine.getByRole("button", { name: "Launch from e2e" }).click();
  const launch = page.getByRole("dialog", { name: "Launch from e2e" });
  await launch.getByLabel("Name").fill("build-1");
  await launch.getByText("A warm VM of pool e2e is ready").waitFor();
  await launch.getByRole("button", { name: "Launch", exact: true }).click();
  await page.getByText(/Started instantly from warm pool e2e \(\d+ ms|\d\.\d s\)/).waitFor();

  await mine.getByRole("button", { name: "Keep one more ready in e2e" }).click();
  await mine.getByRole("img", { name: "3 ready", exact: true }).waitFor();
  assert.equal((await fleet.api("GET", "/fleet/pools/e2e")).min_ready, 3);
  for (let i = 0; i < 2; i++) await mine.getByRole("button", { name: "Keep one fewer ready in e2e" }).click();
  await eventually("the steps to arrive as one change", async () => (await fleet.api("GET", "/fleet/pools/e2e")).min_ready === 1);
  await mine.getByRole("img", { name: "1 ready", exact: true }).waitFor();

  await go(page, "#/vms");
  await page.getByLabel("Filter VMs").fill("e2e");
  await page.getByText("Warm, ready").first().waitFor();
  await page.getByRole("link", { name: "build-1" }).click();
  await page.getByText("Instantly, from warm pool").waitFor();

  await go(page, "#/pools");
  await card(page, "e2e").getByRole("button", { name: "Delete pool e2e" }).click();
  await page.getByRole("dialog").getByText("VMs that were taken from it keep running").waitFor();
  await page.getByRole("dialog").getByRole("button", { name: "Delete pool" }).click();
  await page.getByText("Deleted warm pool e2e").waitFor();
  assert.equal(await card(page, "e2e").count(), 0);
  assert.equal((await fleet.api("GET", "/fleet/vms/build-1")).state, "running");
  clean(seen, fleet.urls[0], fleet.token);
});

test("a pool rolls to another image step by step, pauses when that does not boot, and goes back", async (t) => {
  const { page, seen } = await open(t);
  const pool = () => fleet.api("GET", "/fleet/pools/moving");
  const all = (image) => async () => { const p = await pool(); return !p.status.roll && p.status.ready === 3 && p.warm.every((w) => w.image === image && w.state === "ready"); };
  await fleet.api("POST", "/fleet/pools", { name: "moving", image: "debian-13", min_ready: 3 });
  await eventually("the pool to fill", all("debian-13"));
  await fleet.api("POST", "/fleet/vms", { name: "moved-1", pool: "moving" });
  await eventually("the pool to fill again", all("debian-13"));
  await signIn(page, fleet.urls[0], fleet.token);
  await go(page, "#/pools");
  const mine = card(page, "moving");
  const roll = mine.getByRole("region", { name: "Roll of moving" });
  const start = async (image, atOnce) => {
    await mine.getByRole("button", { name: "Roll image of moving" }).focus();
    await page.keyboard.press("Enter");
    const dialog = page.getByRole("dialog", { name: "Roll moving to another image" });
    assert.equal(await dialog.getByLabel("Image").evaluate((e) => e === document.activeElement), true);
    await dialog.getByLabel("Image").selectOption(image);
    await dialog.getByLabel("Replace at a time").fill(atOnce);
    return dialog;
  };
  const dialog = await start("debian-14", "99");
  assert.deepEqual((await dialog.getByLabel("Image").locator("option").evaluateAll((all) => all.map((o) => o.value))).sort(), ["", "broken", "debian-14"]); // not its own, no other guest's
  await dialog.getByLabel("Image").selectOption("");
  await dialog.getByRole("button", { name: "Roll pool" }).click();
  await dialog.getByRole("alert").getByText("choose the image").waitFor();
  assert.equal(await dialog.getByLabel("Image").getAttribute("aria-invalid"), "true");
  await dialog.getByLabel("Image").selectOption("debian-14");
  await dialog.getByRole("button", { name: "Roll pool" }).click();
  await dialog.getByRole("alert").getByText("max_unavailable must be from 1 to 32").waitFor();
  assert.equal(await dialog.getByLabel("Replace at a time").getAttribute("aria-invalid"), "true");
  await dialog.getByText("All 3 warm VMs will be deleted at once").waitFor();
  await dialog.getByLabel("Replace at a time").fill("1");
  await dialog.getByText("3 warm VMs will be deleted and booted anew from debian-14, 1 at a time; 2 of 3 stay ready. VMs that were taken from it keep running as they are (1 now).").waitFor();
  await dialog.getByLabel("Launches may take meanwhile").selectOption("never");
  await dialog.getByRole("button", { name: "Roll pool" }).press("Enter");
  await mine.getByText("Rolling", { exact: true }).waitFor();
  await roll.getByText("1 of 3 replaced").waitFor();
  assert.equal(await roll.getByRole("meter").getAttribute("aria-valuemax"), "3");
  await eventually("every spare to be of the new image", all("debian-14"));
  await roll.waitFor({ state: "detached" });
  await mine.getByText("Debian 14 · debian-14").waitFor();
  const kept = await fleet.api("GET", "/fleet/vms/moved-1");
  assert.deepEqual([kept.state, kept.image], ["running", "debian-13"]);

  await (await start("broken", "1")).getByRole("button", { name: "Roll pool" }).click();
  await mine.getByText("Roll paused").waitFor();
  await roll.getByText(/Last error: .*fail=boot/).waitFor();
  await roll.getByText("two boots of broken in a row failed. The 2 VMs of debian-14 stay").waitFor();
  await roll.getByText(/Next try (in \d|now)/).waitFor();
  assert.equal((await pool()).status.roll.state, "paused");
  await go(page, "#/");
  await page.getByText("Warm pool moving does not go on to broken").waitFor();
  await go(page, "#/pools");
  await mine.getByRole("button", { name: "Go back to debian-14 in moving" }).click();
  await page.getByRole("dialog").getByText("Those of debian-14 stay and count again").waitFor();
  await page.getByRole("dialog").getByRole("button", { name: "Go back to debian-14" }).click();
  await eventually("the pool to be whole again", all("debian-14"));
  await roll.waitFor({ state: "detached" });
  await mine.getByRole("img", { name: "3 ready", exact: true }).waitFor();
  await fleet.api("DELETE", "/fleet/pools/moving");
  await fleet.api("DELETE", "/fleet/vms/moved-1");
  clean(seen, fleet.urls[0], fleet.token);
});

test("a tenant's time limits and policy are set, refused beside the field, and taken off", async (t) => {
  const { page, seen } = await open(t);
  await signIn(page, fleet.urls[0], fleet.token);
  await go(page, "#/leases");
  await page.getByRole("button", { name: "Add tenant" }).click();
  const adding = page.getByRole("dialog", { name: "Add a tenant" });
  await adding.getByLabel("Name").fill("initech");
  await adding.getByText("Time limits and policy").click();
  await adding.getByLabel("Longest").fill("36h");
  await adding.getByRole("button", { name: "Add tenant" }).click();
  await page.getByText("Added tenant initech").waitFor();
  await go(page, "#/tenants/initech");
  const settings = page.locator("section", { has: page.getByRole("heading", { name: "Settings" }) });
  await settings.getByText("1 d 12 h").waitFor();
  await page.getByRole("button", { name: "Change settings" }).click();
  const dialog = page.getByRole("dialog", { name: "Settings of initech" });
  const field = (label) => dialog.getByLabel(label);
  const wrong = async (label, words) => {
    await dialog.getByRole("button", { name: "Change settings" }).click();
    await dialog.getByRole("alert").getByText(words).waitFor();
    assert.equal(await field(label).getAttribute("aria-invalid"), "true");
  };
  assert.equal(await field("Longest").inputValue(), "1 d 12 h");
  await field("Default").fill("soon");
  await wrong("Default", "write the time limit as");
  await field("Default").fill("2d");
  await wrong("Default", "default_ttl_seconds must not be above max_ttl_seconds (129600)"); // in the API's words
  await field("Default").fill("2h30m");
  await field("Shortest lease of a Mac").fill("99999");
  await wrong("Shortest lease of a Mac", "policy.min_lease_hours");
  await field("Shortest lease of a Mac").fill("48");
  await field("VMs of shared pools").selectOption({ label: "May be taken" });
  await field("macOS guests").selectOption({ label: "Need no lease" });
  await dialog.getByRole("button", { name: "Change settings" }).press("Enter");
  await page.getByText("Changed the settings of initech").waitFor();
  await settings.getByText("2 h 30 min").waitFor();
  await settings.getByText("need no lease", { exact: true }).waitFor();
  await settings.getByText("may be shared by default").waitFor();
  let now = await fleet.api("GET", "/fleet/tenants/initech");
  assert.deepEqual([now.default_ttl_seconds, now.max_ttl_seconds, now.policy], [9000, 129600, { allow_shared_pool_claims: true, require_lease_for_macos: false, isolate_tenant_networks: null, min_lease_hours: 48 }]);

  await page.getByRole("button", { name: "Change settings" }).click();
  for (const label of ["Default", "Longest", "Shortest lease of a Mac"]) await field(label).fill("");
  for (const label of ["VMs of shared pools", "macOS guests"]) await field(label).selectOption("");
  await dialog.getByRole("button", { name: "Change settings" }).click();
  await dialog.waitFor({ state: "detached" });
  now = await fleet.api("GET", "/fleet/tenants/initech");
  assert.deepEqual([now.default_ttl_seconds, now.max_ttl_seconds, ...Object.values(now.policy)], [null, null, null, null, null, null]);

  await page.getByRole("button", { name: "Change quota" }).click();
  await page.getByRole("dialog").getByLabel("vCPUs").fill("9999999999999");
  await page.getByRole("dialog").getByRole("button", { name: "Change quota" }).click();
  await page.getByRole("dialog").getByRole("alert").getByText("quota.max_vcpus must be").waitFor();
  assert.equal(await page.getByRole("dialog").getByLabel("vCPUs").getAttribute("aria-invalid"), "true");
  assert.equal(await page.getByRole("dialog").getByLabel("VMs", { exact: true }).getAttribute("aria-invalid"), null);
  await fleet.api("DELETE", "/fleet/tenants/initech");
  clean(seen, fleet.urls[0], fleet.token);

  const own = await open(t);
  await signIn(own.page, fleet.urls[0], tenant);
  await go(own.page, "#/tenants/acme");
  await own.page.getByText("the fleet's default").first().waitFor(); // which the tenant may not read
  assert.equal(await own.page.getByRole("button", { name: /Change (settings|quota)/ }).count(), 0);
});

test("why a pool waits and when it tries again is on its card", async (t) => {
  const { page } = await open(t);
  await signIn(page, fleet.urls[0], fleet.token);
  await go(page, "#/pools");
  const broken = card(page, "nightly");
  await broken.getByText("Waits:").waitFor();
  await broken.getByText("Last error:").waitFor();
  await broken.getByText(/Next try (in \d|now)/).waitFor();
  await broken.getByRole("img", { name: /2 not booted yet/ }).waitFor();
});

test("a VM takes a command, shows its console, gets a longer limit and is deleted", async (t) => {
  const { page } = await open(t);
  await signIn(page, fleet.urls[0], fleet.token);
  await go(page, "#/vms");
  await page.getByRole("button", { name: "Launch VM" }).click();
  const dialog = page.getByRole("dialog", { name: "Launch a VM" });
  await dialog.getByLabel("Name").fill("cold-1");
  await dialog.getByLabel("From").selectOption({ label: "Debian 13 (debian-13)" });
  await dialog.getByText("Size and host").click();
  await dialog.getByLabel("Boot it anew elsewhere").check();
  await dialog.getByText(/It boots on node-\d; no warm VM fits/).waitFor();
  await dialog.getByRole("button", { name: "Launch", exact: true }).click();
  await page.getByText(/Boots the usual way: reschedulable/).waitFor();
  await page.getByRole("link", { name: "cold-1" }).click();
  await page.getByText("Console log").waitFor();
  await page.getByLabel("Console log", { exact: true }).getByText(/simulated/).waitFor();
  await eventually("the guest agent", async () => (await fleet.api("GET", "/fleet/vms/cold-1")).ready_at);
  await page.getByLabel("Command", { exact: true }).fill("echo hello");
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await page.getByText(/exit \d+/).waitFor();
  await page.getByRole("button", { name: "Change time limit" }).click();
  await page.getByLabel("From now on").fill("5h");
  await page.getByRole("button", { name: "Change", exact: true }).click();
  await page.getByText(/cold-1 ends/).waitFor();
  assert.ok(Math.abs(Date.parse((await fleet.api("GET", "/fleet/vms/cold-1")).expires_at) - Date.now() - 5 * 3_600_000) < 60_000);
  await page.getByRole("button", { name: "Delete", exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete VM" }).click();
  await page.getByText("Deleted cold-1").waitFor();
  await heading(page, "Virtual machines");
});

test("a tenant sees its own, and another's is not there", async (t) => {
  const { page, seen } = await open(t);
  const web = (await fleet.api("GET", "/fleet/vms")).items.find((v) => v.name === "web-1"); // globex's
  await signIn(page, fleet.urls[1], tenant);
  await page.getByText("acme", { exact: true }).first().waitFor();
  assert.equal(await page.getByRole("link", { name: "Cluster" }).count(), 0);
  await go(page, "#/vms");
  await page.getByRole("link", { name: "build-41" }).waitFor();
  assert.equal(await page.getByText("web-1").count(), 0);
  await go(page, `#/vms/${web.id}`);
  await heading(page, "Not here");
  await page.getByText(`there is no VM ${web.id}`).waitFor();
  await go(page, "#/tenants/globex");
  await page.getByText("there is no tenant globex").waitFor();
  await go(page, "#/hosts");
  await page.getByRole("link", { name: "node-1" }).waitFor(); // the Mac that it leases, and no other
  assert.equal(await page.getByRole("link", { name: "node-2" }).count(), 0);
  await go(page, "#/pools");
  await card(page, "linux-ci").getByRole("button", { name: "Roll image of linux-ci" }).waitFor();
  assert.equal(await card(page, "shared").count(), 0);
  await go(page, "#/leases");
  await page.getByRole("cell", { name: "Active" }).waitFor();
  clean(seen, fleet.urls[1], tenant);
});

test("a key's secret is shown once, works, and is refused once revoked", async (t) => {
  const { page } = await open(t);
  await signIn(page, fleet.urls[0], fleet.token);
  await go(page, "#/tenants/globex");
  await page.getByRole("button", { name: "Make key" }).click();
  await page.getByRole("dialog").getByLabel("Role").selectOption("viewer");
  await page.getByRole("dialog").getByRole("button", { name: "Make key" }).click();
  const secret = await page.getByRole("dialog", { name: "The new key" }).locator("code").innerText();
  await page.getByRole("button", { name: "I have copied it" }).click();
  assert.ok(!(await page.content()).includes(secret));

  const other = await open(t);
  await signIn(other.page, fleet.urls[0], secret);
  await other.page.getByText("may look only").waitFor();
  await go(other.page, "#/pools");
  assert.ok(await other.page.getByRole("button", { name: "Create pool" }).first().isDisabled());
  assert.equal(await other.page.getByRole("button", { name: /Roll image|Go back/ }).count(), 0);

  await page.getByRole("button", { name: /Revoke key/ }).click();
  await page.getByRole("button", { name: "Revoke key", exact: true }).click();
  await page.getByText("Revoked the key").waitFor();
  await other.page.getByText("its key was revoked or has expired").waitFor();
  await other.page.getByLabel("Token").waitFor();
});

test("a host is cordoned with a reason, drained with progress, and opened again", async (t) => {
  const { page } = await open(t);
  await signIn(page, fleet.urls[0], fleet.token);
  await go(page, "#/hosts");
  await page.getByRole("button", { name: "Cordon node-3" }).click();
  await page.getByLabel("Why").fill("disk replacement");
  await page.getByRole("dialog").getByRole("button", { name: "Cordon" }).click();
  await page.getByRole("row", { name: /node-3/ }).getByText("Cordoned").waitFor();
  await page.getByRole("button", { name: "Drain node-3" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Drain" }).click();
  await page.getByRole("row", { name: /node-3/ }).getByText("Draining").waitFor();
  await page.getByRole("meter", { name: "Drain of node-3" }).waitFor();
  const left = async () => (await fleet.api("GET", "/fleet/nodes/node-3/vms")).items;
  await eventually("the warm VMs to go", async () => (await left()).every((v) => !v.warm_pool));
  for (const v of await left()) await fleet.api("DELETE", `/fleet/vms/${v.id}`);
  await page.getByRole("row", { name: /node-3/ }).getByText("drained").waitFor();
  await page.getByRole("button", { name: "Uncordon node-3" }).click();
  await page.getByText("node-3 takes VMs again").waitFor();
});

for (const colorScheme of ["light", "dark"]) {
  test(`axe finds nothing serious on any page, ${colorScheme}`, async (t) => {
    const { page, seen } = await open(t, { colorScheme, bypassCSP: true }); // to bring axe in; the other tests run under the policy
    const check = async (where) => {
      if (!(await page.evaluate(() => "axe" in window))) await page.evaluate(axe);
      const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
      const bad = violations.filter((v) => v.impact === "serious" || v.impact === "critical");
      assert.deepEqual(bad.map((v) => `${where}: ${v.id}: ${v.nodes.map((n) => n.html + " " + n.failureSummary).join("\n")}`), []);
    };
    await page.goto(fleet.urls[0] + "/console/");
    await page.getByLabel("Token").waitFor();
    await check("sign-in");
    await signIn(page, fleet.urls[0], fleet.token);
    for (const [name, hash] of Object.entries(await pages(fleet))) {
      await go(page, hash);
      await page.locator("main h1").waitFor();
      await page.waitForFunction(() => !document.querySelector(".skeleton"));
      await check(name);
    }
    await go(page, "#/pools");
    await page.getByRole("button", { name: "Create pool" }).click();
    await check("create pool");
    await page.keyboard.press("Escape");
    assert.equal(await page.getByRole("dialog").count(), 0);
    await page.getByRole("button", { name: "Roll image of linux-ci" }).click();
    await check("roll");
    await page.keyboard.press("Escape");
    await page.getByRole("button", { name: "Launch from linux-ci" }).click();
    await check("launch");
    await page.keyboard.press("Escape");
    await go(page, "#/tenants/globex");
    await page.getByRole("button", { name: "Change settings" }).click();
    await check("settings");
    assert.deepEqual(seen.errors, []);
  });
}

test("everything is within reach of the keyboard, and no page scrolls sideways, on a phone neither", async (t) => {
  const { page } = await open(t, { viewport: { width: 360, height: 740 } });
  await signIn(page, fleet.urls[0], fleet.token);
  for (const [name, hash] of Object.entries(await pages(fleet))) {
    await go(page, hash);
    await page.locator("main h1").waitFor();
    await page.waitForFunction(() => !document.querySelector(".skeleton"));
    for (const width of [360, 820, 1030, 1250, 1280]) {
      await page.setViewportSize({ width, height: 740 });
      const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(over <= 0, `${name} is ${over} px too wide for ${width}`);
    }
  }
  await page.setViewportSize({ width: 360, height: 740 });
  for (const [hash, name, action] of [["#/pools", "Roll image of linux-ci", "Roll pool"], ["#/tenants/globex", "Change settings", "Change settings"]]) {
    await go(page, hash);
    await page.getByRole("button", { name }).click();
    const dialog = page.getByRole("dialog");
    assert.ok(await dialog.evaluate((d) => d.scrollWidth <= d.clientWidth && d.getBoundingClientRect().right <= innerWidth), `${name} is too wide`);
    await dialog.getByRole("button", { name: action }).scrollIntoViewIfNeeded();
    assert.ok(await dialog.getByRole("button", { name: action }).evaluate((b) => b.getBoundingClientRect().bottom <= innerHeight), `${action} is out of reach`);
    await page.keyboard.press("Escape");
    await dialog.waitFor({ state: "detached" });
  }
  await page.setViewportSize({ width: 1280, height: 800 });
  await go(page, "#/pools");
  await card(page, "linux-ci").waitFor();
  await page.evaluate(() => document.querySelector(".skip").focus());
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to the content");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.id), "main");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter"); // Create pool
  const dialog = page.getByRole("dialog", { name: "Create a warm pool" });
  await dialog.waitFor();
  assert.equal(await page.evaluate(() => Boolean(document.activeElement.closest("dialog"))), true);
  await page.keyboard.press("Escape");
  await dialog.waitFor({ state: "detached" });
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Create pool"); // the focus comes back
});

test("where no stream gets through the page goes by lists", async (t) => {
  const { page } = await open(t);
  await page.route("**/fleet/events", (r) => r.abort());
  await signIn(page, fleet.urls[0], fleet.token);
  await page.getByText("Updated every few seconds").waitFor();
  await go(page, "#/vms");
  await fleet.api("POST", "/fleet/vms", { name: "polled-1", image: "debian-13" });
  await page.getByRole("link", { name: "polled-1" }).waitFor();
  await page.unroute("**/fleet/events");
  await page.getByText("Live", { exact: true }).waitFor();
});

test("the leader is killed, and the page goes on", async (t) => {
  const { page, seen } = await open(t);
  const cluster = await fleet.api("GET", "/fleet/cluster");
  const at = cluster.replicas.find((r) => r.role === "voter").url;
  await signIn(page, at, fleet.token);
  await page.getByText("Live", { exact: true }).waitFor();
  await go(page, "#/cluster");
  await page.getByRole("row", { name: new RegExp(cluster.leader) }).getByText("Leader").waitFor();
  const number = cluster.leader.split("-")[1];
  process.kill(Number(fleet.pids()[`replica-${number}`]), "SIGKILL");
  await go(page, "#/vms");
  await page.getByRole("button", { name: "Launch VM" }).click();
  const dialog = page.getByRole("dialog", { name: "Launch a VM" });
  await dialog.getByLabel("Name").fill("after-failover");
  await dialog.getByRole("button", { name: "Launch", exact: true }).click();
  await page.getByRole("link", { name: "after-failover" }).waitFor();
  await eventually("one VM, however often it was asked for", async () => (await fleet.api("GET", "/fleet/vms")).items.filter((v) => v.name === "after-failover").length === 1);
  await page.getByText("Live", { exact: true }).waitFor();
  await go(page, "#/cluster");
  const leader = await eventually("a successor", async () => (await fleet.api("GET", "/fleet/cluster")).leader);
  await page.getByRole("row", { name: new RegExp(leader) }).getByText("Leader").waitFor();
  clean(seen, at, fleet.token);
});

test("the replica behind the page is killed, says so, and the page is live again when it is back", async (t) => {
  const { page } = await open(t);
  await signIn(page, fleet.urls[2], fleet.token);
  await page.getByText("Live", { exact: true }).waitFor();
  await page.evaluate(() => {
    window.said = [];
    new MutationObserver(() => window.said.push(document.querySelector(".link").textContent)).observe(document.querySelector(".who"), { subtree: true, childList: true, characterData: true });
  });
  process.kill(Number(fleet.pids()["replica-3"]), "SIGKILL");
  await page.waitForFunction(() => window.said.some((s) => s !== "Live"));
  await page.getByText("Live", { exact: true }).waitFor();
  await go(page, "#/vms");
  await page.getByRole("link", { name: "after-failover" }).waitFor();
});
