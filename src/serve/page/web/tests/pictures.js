// Takes the pictures of the documentation: SEARCHMILL_PAGE shows a store with a run of the quickstart's first part,
// PICTURES is the folder for them. Prints the text that each shows, as JSON.

import { launch } from "./browser.js";

const browser = await launch();
const context = await browser.newContext({ viewport: { width: 1100, height: 800 }, colorScheme: "light" });
const page = await context.newPage();
page.setDefaultTimeout(30_000);
const shown = {};
// What the page has asked for and not yet got.
const asked = new Set();
page.on("request", (request) => asked.add(request));
page.on("requestfinished", (request) => asked.delete(request));
page.on("requestfailed", (request) => asked.delete(request));

/** Takes a picture once the page is at rest. */
async function take(name) {
  await page.evaluate(() => document.fonts.ready);
  let text = "";
  const begun = Date.now();
  for (let same = 0; same < 3; ) {
    if (Date.now() - begun > 60_000) {
      throw new Error(`${name} does not come to rest: ${[...asked].map((request) => request.url()).join(" ")}`);
    }
    const now = await page.locator("body").innerText();
    same = asked.size === 0 && now === text ? same + 1 : 0;
    text = now;
    await page.waitForTimeout(300);
  }
  // The log is in the order in which nodes ended.
  shown[name] = text.split("\nLog\n")[0];
  await page.screenshot({ path: `${process.env.PICTURES}/${name}.png` });
}

const { runs } = await (await fetch(`${process.env.SEARCHMILL_PAGE}/api/runs`)).json();
await page.goto(process.env.SEARCHMILL_PAGE);
await page.getByRole("link", { name: "quickstart", exact: true }).click();
await page.getByRole("link", { name: runs[0].id }).click();
await page.getByRole("heading", { name: "Graph" }).waitFor();
await page.locator(".drawing a").first().waitFor();
await take("run");

await page.locator(".drawing a", { hasText: "rollouts" }).first().click();
await page.locator(".body .line a").first().waitFor();
await page.locator("#where").fill("f1 < 0.5 AND question_type = 'comparison'");
await page.keyboard.press("Enter");
await page.waitForURL(/where=f1/);
await page.waitForFunction(() => /of 300/.test(document.querySelector(".bar [role=status]")?.textContent ?? ""));
await take("rows");

// One that is right, after two searches.
const before = await page.locator(".bar [role=status]").first().innerText();
await page.locator("#where").fill("f1 = 1 AND tool_calls = 2 AND question_type = 'inference'");
await page.keyboard.press("Enter");
await page.waitForFunction((before) => {
  const told = document.querySelector(".bar [role=status]")?.textContent ?? "";
  return /of 300/.test(told) && told !== before;
}, before);
await page.locator(".body .line a").first().click();
await page.locator("article.r-assistant").first().waitFor();
await page.locator(".tabs", { hasText: "q-000009@1" }).waitFor();
await take("conversation");

console.log(JSON.stringify(shown));
await browser.close();
