// The page in a browser, on a real store: SEARCHMILL_PAGE is its address, SEARCHMILL_BROWSER the browser.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, describe, test } from "node:test";
import { launch } from "./browser.js";

const base = process.env.SEARCHMILL_PAGE;
const axe = readFileSync(new URL("../node_modules/axe-core/axe.min.js", import.meta.url), "utf8");
let browser;

before(async () => {
  browser = await launch();
});

after(() => browser?.close());

/** Opens a page, and collects what goes wrong in it. One that is a file asks nobody. */
async function opened(path, options = {}, root = base) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  const page = await context.newPage();
  const wrong = [];
  page.on("console", (message) => message.type() === "error" && wrong.push(message.text()));
  page.on("pageerror", (error) => wrong.push(error.message));
  if (root !== base) page.on("request", (request) => request.url().startsWith("http") && wrong.push(request.url()));
  page.setDefaultTimeout(15_000);
  await page.goto(root + path);
  await page.waitForSelector("h1");
  return { page, wrong, close: () => context.close() };
}

async function runs() {
  const answer = await fetch(`${base}/api/runs`);
  return (await answer.json()).runs.map((run) => run.id);
}

const status = (page) => page.locator(".bar [role=status]").first();

test("from the pipelines to one conversation, and to the next", async () => {
  const { page, wrong, close } = await opened("/");
  await page.getByRole("link", { name: "seen", exact: true }).click();
  await page.getByRole("heading", { name: "seen" }).waitFor();
  const [newest] = await runs();
  await page.getByRole("link", { name: newest }).click();
  await page.getByRole("heading", { name: "Graph" }).waitFor();
  await page.locator(".drawing a", { hasText: "rollouts" }).first().click();
  await page.locator(".body .line a").first().waitFor();
  assert.match(await status(page).innerText(), /^40 trajectory rows · scores of scores$/);

  // Only what is right, longest first; the address says it.
  await page.locator("#where").fill("f1 >= 0.5 AND grounded");
  await page.keyboard.press("Enter");
  await page.waitForURL(/where=f1/);
  await page.waitForFunction(() => /of 40/.test(document.querySelector(".bar [role=status]")?.textContent ?? ""));
  const counted = /^(\d+) of 40/.exec(await status(page).innerText());
  assert.ok(Number(counted[1]) > 1 && Number(counted[1]) < 40, counted[0]);
  await page.getByRole("button", { name: "turns", exact: true }).click();
  await page.waitForURL(/sort=turns/);
  await page.getByRole("button", { name: /^turns/ }).click();
  await page.waitForURL(/sort=-turns/);
  await page.locator('[aria-sort="descending"]').waitFor();

  // Keys: down, open, next, back.
  await page.locator(".rows").focus();
  await page.keyboard.press("j");
  const chosen = page.locator('.line[aria-selected="true"] a');
  await page.waitForFunction(() => document.querySelector('.line[aria-selected="true"]')?.getAttribute("aria-rowindex") === "3");
  const id = await chosen.innerText();
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: id, level: 1 }).waitFor();
  assert.ok((await page.locator("article.r-assistant").count()) > 0);
  assert.match(await status(page).innerText(), new RegExp(`^2 of ${counted[1]}$`));
  await page.keyboard.press("j");
  await page.waitForFunction((before) => document.querySelector("h1")?.textContent !== before, id);
  assert.match(await status(page).innerText(), new RegExp(`^3 of ${counted[1]}$`));
  await page.keyboard.press("n");
  assert.ok(await page.evaluate(() => document.activeElement?.matches("article.turn")));
  const address = page.url();
  const shown = await page.locator("h1").innerText();
  await page.keyboard.press("Escape");
  await page.locator(".body .line a").first().waitFor();

  // The address alone shows the same row.
  await page.goto(address);
  await page.getByRole("heading", { name: shown, level: 1 }).waitFor();
  assert.deepEqual(wrong, []);
  await close();
});

test("a click on a value of a column filters", async () => {
  const [newest] = await runs();
  const { page, wrong, close } = await opened(`/r/${newest}/n/rollouts`);
  await page.getByRole("button", { name: "Values of question_type" }).click();
  const first = page.locator(".bars button").first();
  const label = await first.locator(".label").innerText();
  const rows = await first.locator(".number").innerText();
  await first.click();
  await page.locator(".chip", { hasText: `question_type = '${label}'` }).waitFor();
  await page.waitForFunction((text) => document.querySelector(".bar [role=status]")?.textContent?.startsWith(text), `${rows} of 40`);
  await page.getByRole("button", { name: `Remove question_type = '${label}'` }).click();
  await page.waitForFunction(() => document.querySelector(".bar [role=status]")?.textContent?.startsWith("40 trajectory"));
  // A filter that is no SQL says so, and the rows stay.
  await page.locator("#where").fill("nothing = 1");
  await page.keyboard.press("Enter");
  await page.getByRole("alert").waitFor();
  assert.match(await page.getByRole("alert").innerText(), /there is no column `nothing`/);
  assert.deepEqual(wrong.filter((text) => !/400/.test(text)), []);
  await close();
});

test("hostile texts stay texts", async () => {
  const [newest] = await runs();
  const { page, wrong, close } = await opened(`/r/${newest}/n/hostile`);
  await page.locator(".body .line a").first().waitFor();
  const rows = await page.locator(".body .line").count();
  for (let at = 0; at < rows; at += 1) {
    await page.goto(`${base}/r/${newest}/n/hostile/row?at=${at}`);
    await page.waitForSelector("dl.record");
    assert.equal(await page.evaluate(() => globalThis.hacked), undefined);
    assert.equal(await page.locator("dl.record img, dl.record script, dl.record iframe").count(), 0);
  }
  await page.goto(`${base}/r/${newest}/n/hostile/row?id=${encodeURIComponent("a/b \"c\" 'd' 🦊?#%2F")}`);
  await page.getByRole("heading", { name: "🦊", exact: false }).waitFor();
  await page.goto(`${base}/r/${newest}/n/hostile/row?id=marks`);
  assert.match(await page.locator("dl.record").innerText(), /⟨202E⟩/);
  await page.goto(`${base}/r/${newest}/n/hostile/row?id=long`);
  await page.getByRole("button", { name: "All of every text" }).click();
  await page.waitForFunction(() => document.querySelector("dl.record")?.textContent?.includes("the end of it"));
  assert.deepEqual(wrong, []);
  await close();
});

test("a long table is scrolled to its end, and holds few rows", async () => {
  const [newest] = await runs();
  const { page, wrong, close } = await opened(`/r/${newest}/n/many`);
  await page.locator(".body .line a").first().waitFor();
  assert.match(await status(page).innerText(), /^450,000 table rows/);
  await page.locator(".rows").focus();
  await page.keyboard.press("e");
  await page.locator(".body .line a", { hasText: "d449999" }).waitFor();
  assert.ok((await page.locator(".body .line").count()) < 60);
  await page.keyboard.press("g");
  await page.locator(".body .line a", { hasText: /^d0$/ }).waitFor();
  assert.deepEqual(wrong, []);
  await close();
});

test("two runs are compared", async () => {
  const { page, wrong, close } = await opened("/p/seen");
  for (const run of await runs()) await page.getByLabel(`Compare ${run}`).check();
  await page.getByRole("link", { name: "Compare these two runs" }).click();
  await page.getByRole("heading", { name: "Params" }).waitFor();
  const row = page.getByRole("row", { name: /top_k/ });
  assert.match(await row.innerText(), /top_k\s+1\s+3/);
  await page.getByRole("heading", { name: "Where it begins" }).waitFor();
  // A question that changed: both conversations.
  await page.locator(".flips button").first().click();
  await page.waitForFunction(() => document.querySelectorAll(".side .question").length === 2);
  assert.ok((await page.locator(".side article.r-assistant").count()) > 1);
  const [one, other] = await page.locator(".side .asked").allInnerTexts();
  assert.equal(one, other);
  const address = page.url();
  await page.keyboard.press("j");
  await page.waitForFunction((before) => location.href !== before, address);
  // The mean of the paired differences, and only large changes.
  assert.match(await page.locator(".bar [role=status]").first().innerText(), /mean [\d.]+ → [\d.]+, [+−][\d.]+ ± [\d.]+ \(95 %, paired\)/);
  assert.ok((await page.locator(".flips li").count()) > 1);
  await page.getByLabel("Only changes of at least").fill("1.5");
  await page.keyboard.press("Tab");
  await page.waitForURL(/least=1.5/);
  await page.getByText("No change is that large.").waitFor();
  assert.equal(await page.locator(".flips li").count(), 0);
  assert.deepEqual(wrong, []);
  await close();
});

test("the next run is told with what it would do", async () => {
  const { page, wrong, close } = await opened("/p/seen");
  await page.getByRole("button", { name: "What would it do, and cost?" }).click();
  await page.getByText(/^\d+ nodes: \d+ cached, 0 to run or to decide$/).waitFor();
  await page.getByText("searchmill run pipeline.yaml --set top_k=3 --set turns=6").waitFor();
  assert.deepEqual(wrong, []);
  await close();
});

test("the rounds of a loop stand side by side", async () => {
  const [newest] = await runs();
  const { page, wrong, close } = await opened(`/r/${newest}`);
  await page.locator(".drawing a", { hasText: "rated" }).first().click();
  await page.getByRole("link", { name: "Rounds" }).click();
  await page.getByText("3 questions in 3 rounds · 1 learnt · 1 forgotten").waitFor();
  const first = page.locator("table.rounds tbody th").first();
  await page.getByLabel("Order").selectOption("forgotten");
  await page.waitForFunction(() => document.querySelector("table.rounds tbody th")?.textContent === "forgotten");
  assert.equal(await first.innerText(), "forgotten");
  await page.locator("table.rounds tbody tr").first().locator("td a").last().click();
  await page.waitForURL(/rated%40round%3D2\/row/);
  await page.locator("dl.record").waitFor();
  assert.match(await page.locator("dl.record").innerText(), /forgotten/);
  assert.deepEqual(wrong, []);
  await close();
});

test("recorded tokens say what is learnt and how probable it was", async () => {
  const [newest] = await runs();
  const { page, wrong, close } = await opened(`/r/${newest}/n/voiced/row?at=0`);
  const turn = page.locator("article.r-assistant").first();
  const summary = turn.locator("details.tokens summary");
  assert.match(await summary.innerText(), /^16 tokens learnt · 0 masked · mean log-probability -\d/);
  await summary.click();
  await turn.locator(".strip .token").first().waitFor();
  assert.equal(await turn.locator(".strip .token").count(), 16);
  assert.match(await turn.locator(".strip .token").first().getAttribute("title"), /^token \d+ · learnt · log-probability -/);
  const read = page.locator("article.r-system details.tokens summary, article.r-user details.tokens summary").first();
  assert.match(await read.innerText(), /^0 tokens learnt · \d+ masked$/);
  assert.deepEqual(wrong, []);
  await close();
});

test("a reward is told by its parts", async () => {
  const [newest] = await runs();
  const { page, wrong, close } = await opened(`/r/${newest}/n/rewarded/row?at=0`);
  await page.getByText(/^f1 [\d.]+ \+ format [\d.]+$/).waitFor();
  assert.deepEqual(wrong, []);
  await close();
});

test("a report stands in a frame that can read nothing", async () => {
  const [newest] = await runs();
  const { page, wrong, close } = await opened(`/r/${newest}/n/scores`);
  const frame = page.frameLocator("iframe.file");
  await frame.locator("h1").waitFor();
  assert.ok((await frame.locator("body").innerText()).length > 200);
  assert.equal(await page.locator("iframe.file").getAttribute("sandbox"), "");
  // The report shows a few rollouts, the page all of them.
  await page.getByRole("heading", { name: "All rollouts" }).waitFor();
  await page.locator(".below .body .line a").first().waitFor();
  assert.match(await page.locator(".below [role=status]").innerText(), /^40 trajectory rows/);
  await page.getByRole("link", { name: /^scores \(/ }).click();
  await page.locator(".body .line a").first().waitFor();
  await page.getByRole("link", { name: "About", exact: true }).click();
  await page.locator("dl.facts a[href^='/a/']").first().click();
  await page.getByRole("heading", { name: /^Artifact / }).waitFor();
  await page.getByRole("link", { name: newest }).waitFor();
  assert.deepEqual(wrong, []);
  await close();
});

test("two people label a row", async () => {
  const [newest] = await runs();
  const people = [];
  for (const name of ["ann", "bob"]) {
    const one = await opened(`/r/${newest}/n/rollouts/row?at=1`);
    await one.page.locator("details.labels").waitFor();
    await one.page.keyboard.press("l");
    await one.page.getByLabel("Your name").fill(name);
    people.push(one);
  }
  const [ann, bob] = people;
  await ann.page.getByRole("button", { name: "Bad" }).click();
  await ann.page.locator(".labels li", { hasText: "ann" }).waitFor();
  await bob.page.getByLabel("Note").fill("a <i>note</i>");
  await bob.page.getByRole("button", { name: "Good" }).click();
  await bob.page.locator(".labels li", { hasText: "a <i>note</i>" }).waitFor();
  assert.equal(await bob.page.locator(".labels li").count(), 2);
  await bob.page.getByRole("link", { name: "Labels", exact: true }).click();
  await bob.page.getByLabel("By").selectOption("ann");
  await bob.page.getByText("1 of 2").waitFor();
  await bob.page.locator("table.list tbody th a").click();
  await bob.page.locator("details.labels").waitFor();
  // A mark is taken back by the same button.
  await ann.page.getByRole("button", { name: "Bad", pressed: true }).click();
  await ann.page.waitForFunction(() => ![...document.querySelectorAll(".labels li")].some((one) => one.textContent.includes("ann")));
  for (const one of people) {
    assert.deepEqual(one.wrong, []);
    await one.close();
  }
});

test("c compares with another run", async () => {
  const [newest, oldest] = await runs();
  const { page, wrong, close } = await opened(`/r/${newest}`);
  await page.keyboard.press("c");
  await page.getByRole("dialog").getByRole("link", { name: oldest }).waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "detached" });
  assert.match(page.url(), new RegExp(`/r/${newest}$`));
  await page.keyboard.press("c");
  await page.getByRole("dialog").getByRole("link", { name: oldest }).click();
  await page.waitForURL(new RegExp(`compare\\?a=${oldest}&b=${newest}`));
  await page.getByRole("heading", { name: "Params" }).waitFor();
  assert.deepEqual(wrong, []);
  await close();
});

test("a key does what the view that is there says, before it is painted too", async () => {
  const [newest] = await runs();
  const { page, close } = await opened(`/r/${newest}`);
  const seen = await page.evaluate(async () => {
    const press = () => dispatchEvent(new KeyboardEvent("keydown", { key: "c" }));
    const dialog = () => document.querySelector("[role=dialog]") !== null;
    // Pressed again at once after each change, in the order open, closed, open.
    const seen = [];
    const done = new Promise((resolve) => {
      new MutationObserver(() => {
        if (dialog() === (seen.at(-1) ?? false)) return;
        seen.push(dialog());
        if (seen.length < 3) press();
        else resolve();
      }).observe(document.body, { childList: true, subtree: true });
    });
    press();
    await Promise.race([done, new Promise((resolve) => setTimeout(resolve, 3000))]);
    return seen;
  });
  assert.deepEqual(seen, [true, false, true]);
  await close();
});

test("what is not there is said", async () => {
  const { page, close } = await opened("/nothing/here");
  assert.match(await page.locator("h1").innerText(), /nothing here/);
  await page.goto(`${base}/r/20200101-000000-00000000`);
  await page.getByRole("alert").waitFor();
  assert.match(await page.getByRole("alert").innerText(), /there is no run/);
  await close();
});

// Side by side: most of the time goes by while a page settles.
describe("no barrier", { concurrency: true }, () => {
  for (const [name, options] of Object.entries({
    light: { colorScheme: "light" },
    dark: { colorScheme: "dark" },
    narrow: { viewport: { width: 360, height: 720 } },
  })) {
    test(name, async () => {
      const [newest, oldest] = await runs();
      for (const path of [
        "/",
        "/p/seen",
        `/r/${newest}`,
        `/r/${newest}/n/rollouts`,
        `/r/${newest}/n/rollouts?tab=about`,
        `/r/${newest}/n/rollouts?tab=lineage`,
        `/r/${newest}/n/rollouts/row?at=0`,
        `/r/${newest}/n/rated%40round%3D2?tab=rounds`,
        `/compare?a=${oldest}&b=${newest}`,
        `/compare?a=${newest}&b=${newest}&node=voiced&with=rollouts`,
        `/r/${newest}/n/scores`,
        `/r/${newest}/n/voiced/row?at=0`,
        "/labels",
      ]) {
        const { page, wrong, close } = await opened(path, options);
        await page.waitForLoadState("networkidle").catch(() => {});
        await page.waitForTimeout(300);
        // `evaluate` does not go through the policy of the page.
        await page.evaluate(axe);
        const found = await page.evaluate(() => globalThis.axe.run());
        const told = found.violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.target.join(" ")).slice(0, 3).join(", ")}`);
        assert.deepEqual(told, [], path);
        const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
        assert.ok(wide <= 0, `${path} is ${wide} pixels too wide`);
        assert.deepEqual(wrong, []);
        await close();
      }
    });
  }
});

const bundle = (view = "") => new URL(`file://${process.env.SEARCHMILL_BUNDLE}${view}`).href;

test("a bundle: from the pipelines to a conversation without a server", async () => {
  const { page, wrong, close } = await opened("", {}, bundle());
  await page.getByText(/Bundle of \.searchmill/).waitFor();
  await page.getByRole("link", { name: "seen", exact: true }).click();
  const [newest, older] = await runs();
  await page.getByRole("link", { name: newest }).click();
  await page.getByRole("heading", { name: "Graph" }).waitFor();
  await page.locator(".log li").first().waitFor();
  await page.locator(".drawing a", { hasText: "rollouts" }).first().click();
  await page.locator(".body .line a").first().waitFor();
  assert.match(await status(page).innerText(), /^40 trajectory rows · scores of scores$/);

  // The filter, the order and the address are those of the server.
  await page.locator("#where").fill("f1 >= 0.5 AND grounded");
  await page.keyboard.press("Enter");
  await page.waitForURL(/where=f1/);
  await page.waitForFunction(() => /of 40/.test(document.querySelector(".bar [role=status]")?.textContent ?? ""));
  await page.getByRole("button", { name: "turns", exact: true }).click();
  await page.getByRole("button", { name: /^turns/ }).click();
  await page.locator('[aria-sort="descending"]').waitFor();
  const query = new URLSearchParams(page.url().split("?")[1]);
  query.set("columns", "id\nturns");
  const answer = await (await fetch(`${base}/api/runs/${newest}/nodes/rollouts/rows?${query}`)).json();
  assert.equal(await status(page).innerText(), `${answer.count} of 40 trajectory rows · scores of scores`);
  const shown = await page.locator(".body .line a").allInnerTexts();
  const turns = (id) => answer.rows.find((row) => row.id === id)?.cells[1];
  assert.equal(turns(shown[0]), answer.rows[0].cells[1]);

  await page.locator(".body .line a").first().click();
  await page.getByRole("heading", { name: shown[0], level: 1 }).waitFor();
  assert.ok((await page.locator("article.r-assistant").count()) > 0);
  assert.ok((await page.locator("nav[aria-label='Samples of this question'] a").count()) === 2);
  assert.equal(await page.getByText("Your name").count(), 0);
  await page.reload();
  await page.getByRole("heading", { name: shown[0], level: 1 }).waitFor();
  await page.goBack();
  await page.locator(".body .line a").first().waitFor();

  // The report stands in a frame here, too.
  await page.goto(bundle(`#/r/${newest}/n/scores`));
  await page.frameLocator("iframe.file").locator("h1").waitFor();
  await page.goto(bundle(`#/r/${newest}/n/rollouts`));
  await page.locator(".body .line a").first().waitFor();

  // What needs a database is told.
  await page.locator("#where").fill("f1 < 0.5 OR turns > 1");
  await page.keyboard.press("Enter");
  await page.getByText("a bundle knows only conditions of one column").waitFor();
  await page.goto(bundle(`#/compare?a=${older}&b=${newest}`));
  await page.getByText("top_k").first().waitFor();
  assert.deepEqual(wrong, []);
  await close();
});

test("a bundle: hostile texts stay texts, and what is not there is told", async () => {
  const { page, wrong, close } = await opened("", {}, bundle());
  const [newest] = await runs();
  await page.goto(bundle(`#/r/${newest}/n/many`));
  await page.getByText("the first 50 rows are in this bundle").waitFor();
  await page.goto(bundle(`#/r/${newest}/n/many/row?id=d400000`));
  await page.getByText(/no row has the id d400000 among the first 50 of 450000 rows/).waitFor();
  await page.goto(bundle(`#/r/${newest}/n/hostile`));
  await page.locator(".body .line a").nth(4).waitFor();
  assert.equal(await page.locator(".body .line a").nth(1).innerText(), "<img src=x onerror='hacked=1'>");
  await page.locator(".body .line a").nth(2).click();
  await page.getByText("{{7*7}} ${hacked=1}").waitFor();
  assert.equal(await page.evaluate(() => globalThis.hacked), undefined);
  await page.goto(bundle("#/r/nothing"));
  await page.getByText("this is not in the bundle").waitFor();
  assert.deepEqual(wrong, []);
  await close();
});

test("a bundle filters and sorts as the database does", async () => {
  const { page, wrong, close } = await opened("", {}, bundle());
  const [newest] = await runs();
  await page.goto(bundle(`#/r/${newest}/n/odd`));
  await page.locator(".body .line a").first().waitFor();
  const path = `${base}/api/runs/${newest}/nodes/odd/rows`;
  let last = "";
  for (const [where, sort] of [
    ["big = 9007199254740993", ""],
    ["big > 9007199254740992", ""],
    ["f > 0.5", ""],
    ["f < 'x'", ""],
    ["f >= 0.5 AND id <> 'b'", "-f"],
    ["NOT flag", ""],
    ["flag IS NULL", ""],
    ["text ILIKE '%100\\%%'", ""],
    ["text > '\uffee'", ""],
    ["coalesce(array_length(list), 0) >= 2", ""],
    ["array_to_string(list, ' ') ILIKE '%x y%'", ""],
    ["id <> 'zz'", "-f"],
    ["id <> 'zz'", "text"],
    ["id <> 'zz'", "-big"],
    ["id <> 'zz'", "flag"],
  ]) {
    const query = new URLSearchParams({ where, columns: "id", ...(sort ? { sort } : {}) });
    const answer = await (await fetch(`${path}?${query}`)).json();
    await page.goto(bundle(`#/r/${newest}/n/odd?${query}`));
    // What the server refuses, the bundle must not answer.
    const ids = answer.rows?.map((row) => row.id) ?? ["refused"];
    const shown = (ids) => {
      const found = [...document.querySelectorAll(".body .line a")].map((link) => link.textContent);
      return document.querySelector(".problem") !== null || found.join("\n") === ids.join("\n");
    };
    await page.waitForFunction(shown, ids, { timeout: 3000 }).catch(() => undefined);
    const told = await page.locator(".problem").allInnerTexts();
    if (told.length > 0) {
      last = told[0];
      assert.match(told[0], /a bundle knows only/, where);
      continue;
    }
    assert.deepEqual(await page.locator(".body .line a").allInnerTexts(), ids, `${where} sorted by ${sort}`);
  }
  assert.match(last, /f < 'x'/);
  assert.deepEqual(wrong, []);
  await close();
});

test("two nodes of one run are compared", async () => {
  const [newest] = await runs();
  const { page, wrong, close } = await opened(`/r/${newest}/n/voiced`);
  await page.keyboard.press("c");
  await page.getByRole("dialog").getByRole("link", { name: "rollouts", exact: true }).click();
  await page.getByRole("heading", { name: "Compare two nodes" }).waitFor();
  assert.match(page.url(), /node=voiced&with=rollouts$/);
  // What both read differs, too: a chosen part of the questions.
  await page.getByRole("heading", { name: "Where it begins" }).waitFor();
  await page.locator(".flips button").first().click();
  await page.waitForFunction(() => document.querySelectorAll(".side .question").length === 2);
  const sides = await page.locator(".side h3").allInnerTexts();
  assert.deepEqual(sides, [`voiced of ${newest}`, `rollouts of ${newest}`]);
  assert.deepEqual(wrong, []);
  await close();
});
