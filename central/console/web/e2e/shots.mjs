// Takes a picture of every page, light, dark and on a phone, into build/console-shots.
import { mkdirSync, rmSync } from "node:fs";
import { pause, signIn, startBrowser, startFleet } from "./fleet.mjs";
import { fill, pages } from "./sample.mjs";

const dir = new URL("../../../../build/console-shots/", import.meta.url).pathname;
rmSync(dir, { recursive: true, force: true });
mkdirSync(dir, { recursive: true });

const looks = {
  light: { viewport: { width: 1280, height: 800 }, colorScheme: "light" },
  dark: { viewport: { width: 1280, height: 800 }, colorScheme: "dark" },
  phone: { viewport: { width: 390, height: 844 }, colorScheme: "light", isMobile: true, hasTouch: true, deviceScaleFactor: 2 },
};

const fleet = await startFleet();
const browser = await startBrowser();
try {
  const { tenant } = await fill(fleet);
  const all = Object.entries(await pages(fleet));
  for (const [look, options] of Object.entries(looks)) {
    const context = await browser.newContext(options);
    const page = await context.newPage();
    await page.goto(fleet.urls[0] + "/console/");
    await page.getByLabel("Token").waitFor();
    await page.screenshot({ path: `${dir}signin-${look}.png` });
    await signIn(page, fleet.urls[0], fleet.token);
    for (const [name, hash] of all) {
      await page.evaluate((to) => (location.hash = to), hash);
      await page.locator(".skeleton").first().waitFor({ state: "detached", timeout: 10_000 }).catch(() => {});
      await pause(900);
      await page.screenshot({ path: `${dir}${name}-${look}.png`, fullPage: true });
    }
    await page.evaluate(() => (location.hash = "#/pools"));
    await fleet.api("POST", "/fleet/pools/shared/roll", { image: look === "dark" ? "debian-13" : "debian-14" });
    await page.getByText("Rolling", { exact: true }).waitFor();
    await page.getByRole("region", { name: "Roll of shared" }).scrollIntoViewIfNeeded();
    await page.screenshot({ path: `${dir}rolling-${look}.png` });
    await page.getByRole("button", { name: "Create pool" }).click();
    await page.getByLabel("Image", { exact: true }).selectOption("macos-27-xcode");
    await page.screenshot({ path: `${dir}dialog-pool-${look}.png` });
    await page.keyboard.press("Escape");
    await page.getByRole("button", { name: "Roll image of linux-ci" }).click();
    await page.getByLabel("Image", { exact: true }).selectOption("debian-14");
    await page.getByLabel("Replace at a time").fill("2");
    await page.screenshot({ path: `${dir}dialog-roll-${look}.png` });
    await page.keyboard.press("Escape");
    await page.getByRole("button", { name: "Launch from linux-ci" }).click();
    await page.getByLabel("Name").fill("shot-" + look);
    await page.locator(".preview", { hasText: /warm VM|boots/ }).waitFor();
    await page.screenshot({ path: `${dir}dialog-launch-${look}.png` });
    await page.getByRole("button", { name: "Launch", exact: true }).click();
    await page.locator(".toast").waitFor();
    await pause(300);
    await page.screenshot({ path: `${dir}toast-${look}.png` });
    await page.evaluate(() => (location.hash = "#/tenants/globex"));
    await page.getByRole("button", { name: "Change settings" }).click();
    await page.getByText("Default: need a lease").waitFor({ state: "attached" });
    await page.screenshot({ path: `${dir}dialog-settings-${look}.png` });
    await page.keyboard.press("Escape");
    if (look === "phone") {
      await page.getByRole("button", { name: "Menu" }).click();
      await page.screenshot({ path: `${dir}menu-${look}.png` });
    }
    await context.close();
    const theirs = await browser.newContext(options);
    const other = await theirs.newPage();
    await signIn(other, fleet.urls[0], tenant);
    await pause(900);
    await other.screenshot({ path: `${dir}tenant-overview-${look}.png`, fullPage: true });
    await theirs.close();
  }
  console.log(`pictures are in ${dir}`);
} finally {
  await browser.close();
  await fleet.stop();
}
