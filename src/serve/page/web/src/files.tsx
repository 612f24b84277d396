// Artifacts: the files of folders, with reports and plots in a frame that can do nothing; and which runs have them.

import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { type Artifact, address } from "./api";
import { Facts, Told, Waiting, useAnswer } from "./common";
import { bytes, count } from "./format";
import { isBundle, link, place } from "./route";

/** The file that says most: a page, else a drawing. */
function first(artifact: Artifact): string | undefined {
  const named = (ending: RegExp): string | undefined => artifact.files.find((file) => ending.test(file.name))?.name;
  return named(/(^|\/)(report|index)\.html$/) ?? named(/\.html$/) ?? named(/\.svg$/) ?? named(/\.png$/);
}

function source(artifact: Artifact, name: string): string {
  return artifact.folder + name.split("/").map(encodeURIComponent).join("/");
}

export function Files({ id }: { id: string }): JSX.Element {
  const { value, problem, again } = useAnswer<Artifact>(address(["artifacts", id]));
  if (problem) return <Told problem={problem} again={again} />;
  if (!value) return <Waiting />;
  return <FilesOf artifact={value} />;
}

function FilesOf({ artifact }: { artifact: Artifact }): JSX.Element {
  const asked = place.value.query.get("file");
  const isThere = artifact.files.some((file) => file.name === asked && file.shown);
  const chosen = isThere && asked ? asked : first(artifact);
  const here = (file: string): string => {
    const query: Record<string, string> = {};
    for (const [name, value] of place.value.query) query[name] = value;
    return link(place.value.path.split("/").filter(Boolean).map(decodeURIComponent), { ...query, file });
  };
  const shown = artifact.files.filter((file) => file.shown);
  return (
    <>
      {chosen && (
        <>
          <p class="bar">
            {!isBundle && (
              <a class="button" href={source(artifact, chosen)} target="_blank" rel="noreferrer">
                Open alone
              </a>
            )}
            <a class="button" href={source(artifact, chosen)} target="_blank" rel="noreferrer" download={chosen.split("/").pop()}>
              Download
            </a>
            <span class="quiet">{chosen}</span>
          </p>
          <iframe class="file" title={`The file ${chosen}`} src={source(artifact, chosen)} sandbox="" />
        </>
      )}
      <details open={!chosen || shown.length > 1}>
        <summary>{artifact.count === 1 ? "1 file" : `${count(artifact.count)} files`}</summary>
        <ul class="plain">
          {artifact.files.map((file) => (
            <li key={file.name}>
              {file.shown ? (
                <a href={here(file.name)} aria-current={file.name === chosen ? "page" : undefined}>
                  {file.name}
                </a>
              ) : (
                <a href={source(artifact, file.name)} target="_blank" rel="noreferrer" download={file.name.split("/").pop()}>
                  {file.name}
                </a>
              )}{" "}
              <span class="quiet">{file.bytes === null ? "not there" : bytes(file.bytes)}</span>
            </li>
          ))}
        </ul>
        {artifact.count > artifact.files.length && (
          <p class="quiet">{`${isBundle ? "Here are" : "The first"} ${count(artifact.files.length)} of ${count(artifact.count)}: searchmill path ${artifact.id.slice(0, 12)} has all.`}</p>
        )}
      </details>
    </>
  );
}

/** An artifact, whoever made it. */
export function ArtifactPage({ id }: { id: string }): JSX.Element {
  const { value, problem, again } = useAnswer<Artifact>(address(["artifacts", id]));
  useEffect(() => {
    document.title = `${id.slice(0, 12)} · searchmill`;
  }, [id]);
  if (problem) return <Told problem={problem} again={again} />;
  if (!value) return <Waiting />;
  const newest = value.runs[0];
  return (
    <main>
      <h1>
        Artifact <span class="id">{value.id.slice(0, 12)}</span>
      </h1>
      <Facts
        facts={[
          ["Kind", value.kind],
          ["Rows", value.rows === null ? "" : count(value.rows)],
          ["Id", <code key="id">{value.id}</code>],
        ]}
      />
      {value.rows !== null && newest && (
        <p>
          <a class="button" href={link(["r", newest.run, "n", newest.node], { port: newest.port, tab: "rows" })}>
            Rows
          </a>
        </p>
      )}
      <section>
        <h2>In runs</h2>
        <ul>
          {value.runs.map((one) => (
            <li key={one.run + one.node + one.port}>
              <a href={link(["r", one.run])}>{one.run}</a>{" "}
              <a href={link(["r", one.run, "n", one.node])}>{one.node}</a> <span class="quiet">{one.port}</span>
            </li>
          ))}
          {value.runs.length === 0 && <li class="quiet">no run that is still known</li>}
        </ul>
      </section>
      {value.rows === null && (
        <section>
          <h2>Files</h2>
          <FilesOf artifact={value} />
        </section>
      )}
    </main>
  );
}
