{{- define "nfqproxy.labels" -}}
app.kubernetes.io/name: nfqproxy
{{- if not .Values.plain }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | replace "+" "_" | trunc 63 | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* The metadata of an object: a list of the context and the name; with "cluster" it has no namespace. */}}
{{- define "nfqproxy.metadata" -}}
{{- $root := index . 0 -}}
name: {{ index . 1 }}
{{- if eq (len .) 2 }}
namespace: {{ $root.Release.Namespace }}
{{- end }}
labels:
  {{- include "nfqproxy.labels" $root | nindent 2 }}
{{- with $root.Values.annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "nfqproxy.image" -}}
{{- with .Values.image -}}
{{- .repository }}
{{- if or .tag (not .digest) }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- with .digest }}@{{ . }}{{ end }}
{{- end }}
{{- end }}

{{- define "nfqproxy.securityContext" -}}
runAsUser: 0
runAsGroup: 0
privileged: false
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  add: [NET_ADMIN]
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- /* The port of an address IP:PORT, or 0. */}}
{{- define "nfqproxy.port" -}}
{{- regexFind "[0-9]+$" (regexFind ":[0-9]+$" .) | default "0" -}}
{{- end }}
