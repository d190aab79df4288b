package job

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/nfqproxy/nfqproxy/deploy/experiment"
)

// Label has a digest of the experiment and the version of nfqproxy. Jobs with the same value have the same results.
const Label = "nfqproxy.io/experiment"

// ExitFailed is the exit code of a part that failed by itself, and would fail again. It is none of those that a program has that was ended:
// the first process of a container, written in Go, has 2 if it gets a signal before it handles signals.
const ExitFailed = 3

const (
	container = "run"
	archive   = "experiment.tar.gz" // the key of the ConfigMap, and the name of its file
	user      = 65532               // without a name and without rights
	maxTries  = 2                   // of an index, after the first one
	maxFailed = 10                  // indexes that fail, before the Job ends
	keepDays  = 7                   // a Job that has ended, if nobody takes its results

	// maxArchive bounds the archive, in bytes: a ConfigMap holds 1 MiB.
	maxArchive = 1<<20 - 4096
)

// identity is the value of [Label].
func (c *Cluster) identity(x *experiment.Experiment) string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(x.Digest+" "+c.Version)))[:40]
}

// Objects are the objects of a run of cells.
func (c *Cluster) Objects(x *experiment.Experiment, cells []experiment.Key) (*corev1.ConfigMap, *batchv1.Job, error) {
	work := &experiment.Work{Version: c.Version, Each: c.Each, Cells: cells}
	data, err := work.Pack(x)
	if err != nil {
		return nil, nil, err
	}
	if len(data) > maxArchive {
		return nil, nil, fmt.Errorf("%s: the experiment's files have %d bytes, compressed, but a ConfigMap holds at most %d: run it on one machine, or with smaller files", x.Metadata.Name, len(data), maxArchive)
	}
	const longest = 40 // an index and the pod's own suffix follow
	name := x.Metadata.Name
	name = strings.TrimRight(name[:min(len(name), longest)], "-") + "-" + rand.String(8)
	labels := map[string]string{Label: c.identity(x), "app.kubernetes.io/name": "nfqproxy-experiment"}
	meta := metav1.ObjectMeta{Name: name, Namespace: c.Namespace, Labels: labels}
	m := &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: meta, Immutable: new(true), BinaryData: map[string][]byte{archive: data},
	}
	parts := int32(work.Parts())
	j := &batchv1.Job{
		TypeMeta:   metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
		ObjectMeta: meta,
		Spec: batchv1.JobSpec{
			CompletionMode: new(batchv1.IndexedCompletion),
			Completions:    new(parts), Parallelism: new(min(int32(min(c.Parallel, maxParts)), parts)),
			BackoffLimitPerIndex: new(int32(maxTries)), MaxFailedIndexes: new(min(int32(maxFailed), parts)),
			TTLSecondsAfterFinished: new(int32(keepDays * 24 * 60 * 60)),
			PodFailurePolicy: &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
				{Action: batchv1.PodFailurePolicyActionIgnore, OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}},
				// What fails by itself fails again.
				{Action: batchv1.PodFailurePolicyActionFailIndex, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{ContainerName: new(container), Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{ExitFailed}}},
			}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: c.pod(name)},
		},
	}
	return m, j, nil
}

// pod is the pod of an index. It has no rights.
func (c *Cluster) pod(configMap string) corev1.PodSpec {
	resources := corev1.ResourceList{corev1.ResourceCPU: c.CPU, corev1.ResourceMemory: c.Memory}
	one := corev1.Container{
		Name: container, Image: c.Image, ImagePullPolicy: corev1.PullIfNotPresent,
		Command: []string{"/nfqproxy"},
		Args:    []string{"experiment", "part", "/experiment/" + archive, "--index=$(JOB_COMPLETION_INDEX)"},
		// The garbage collector of Go does not know of the limit by itself.
		Env:       []corev1.EnvVar{{Name: "GOMEMLIMIT", Value: strconv.FormatInt(c.Memory.Value()/10*9, 10)}},
		Resources: corev1.ResourceRequirements{Requests: resources, Limits: resources},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
		VolumeMounts: []corev1.VolumeMount{{Name: "experiment", MountPath: "/experiment", ReadOnly: true}, {Name: "tmp", MountPath: "/tmp"}},
	}
	p := corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false),
		NodeSelector: map[string]string{corev1.LabelOSStable: "linux"},
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: new(true), RunAsUser: new(int64(user)), RunAsGroup: new(int64(user)), FSGroup: new(int64(user)),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Volumes: []corev1.Volume{
			{Name: "experiment", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: configMap}}}},
			{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		},
	}
	if c.Volume != "" {
		const at = "/results"
		one.Args = append(one.Args, "--keep="+at)
		one.VolumeMounts = append(one.VolumeMounts, corev1.VolumeMount{Name: "results", MountPath: at})
		p.Volumes = append(p.Volumes, corev1.Volume{Name: "results", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c.Volume}}})
	}
	p.Containers = []corev1.Container{one}
	return p
}
